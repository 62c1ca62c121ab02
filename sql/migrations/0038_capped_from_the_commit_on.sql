-- A cap counts from its commit on, whenever it was set: until then nobody sees it, and jobs go on being claimed in batches. Those that were claimed more
-- than 10 s after a cap was set in a transaction that stayed open were not counted, and as many ran beyond it.
CREATE FUNCTION jobherd.cap_from_here() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF NEW.capped_at < clock_timestamp() - interval '1 s' AND (TG_OP = 'INSERT' OR OLD.capped_at IS DISTINCT FROM NEW.capped_at) THEN
        UPDATE jobherd.gates g SET capped_at = clock_timestamp() WHERE g.scope = NEW.scope AND g.name = NEW.name AND g.capped_at = NEW.capped_at;
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER capped AFTER INSERT OR UPDATE OF capped_at ON jobherd.gates DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.capped_at IS NOT NULL) EXECUTE FUNCTION jobherd.cap_from_here();
