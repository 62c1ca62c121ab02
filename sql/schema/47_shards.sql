-- Several databases with one set of ids: each gives the ids of its shard only. So an id names its database, and no two
-- jobs of any of them have the same. Shard 1 has the ids below 2 * 10^13, and shard N those from N * 10^13 on. All of
-- them are below 2^53, up to which JSON has exact numbers. The bounds of the sequence are the only place that says which
-- shard this is: no id outside of them can ever be given.

-- Makes this database one of several: from now on its ids are those of one shard. Returns false if they are already.
-- Only the owner of the schema can do this.
CREATE FUNCTION jobherd.set_shard(shard integer)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    width   CONSTANT bigint := 10000000000000;
    present integer;
    last    bigint;
BEGIN
    IF shard IS NULL OR shard NOT BETWEEN 1 AND 899 THEN
        RAISE EXCEPTION 'jobherd.set_shard: a shard has a number from 1 to 899, not %', shard USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Race: this locks the sequence. No other session can take an id, or set the shard, between the check and the change.
    ALTER SEQUENCE jobherd.job_ids NO CYCLE;
    SELECT CASE WHEN s.seqmax < 900 * width THEN s.seqmax / width ELSE 0 END INTO present
      FROM pg_sequence s WHERE s.seqrelid = 'jobherd.job_ids'::regclass;
    IF present = shard THEN
        RETURN false;
    ELSIF present > 0 THEN
        RAISE EXCEPTION 'jobherd.set_shard: this database is shard % and has given ids of it: it cannot become shard %', present, shard
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Is this the address of the right database?';
    END IF;
    SELECT CASE WHEN j.is_called THEN j.last_value ELSE 0 END INTO last FROM jobherd.job_ids j;
    IF shard > 1 AND last > 0 OR last >= 2 * width THEN
        RAISE EXCEPTION 'jobherd.set_shard: this database has already given ids up to %: it cannot become shard %', last, shard
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A database with jobs can only be shard 1. Create a new database for every other shard.';
    END IF;
    EXECUTE format('ALTER SEQUENCE jobherd.job_ids MAXVALUE %s', (shard + 1) * width - 1);
    IF shard > 1 THEN
        EXECUTE format('ALTER SEQUENCE jobherd.job_ids MINVALUE %1$s START %1$s RESTART %1$s', shard * width);
    END IF;
    RETURN true;
END $$;
