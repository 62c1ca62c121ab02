-- Who waits for a job that runs waits for its settlement to end, by a lock that takes nothing and that PostgreSQL gives only to those who may
-- write the row. Whoever may only look waits too, so it is taken by the owner.
CREATE FUNCTION jobherd.meet_settlements(ids bigint[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = ANY (ids)) FOR KEY SHARE;
END $$;
