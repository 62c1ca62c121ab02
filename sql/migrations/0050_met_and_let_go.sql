-- Who waits for jobs that run meets their settlements and lets go of them at once: the lock was held until the transaction of whoever asked had ended, so one that may only
-- look kept every outcome of these claims from being written, for as long as he liked. What is locked in a block that ends in an exception is let go with it.
CREATE OR REPLACE FUNCTION jobherd.meet_settlements(ids bigint[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = ANY (ids)) FOR KEY SHARE;
    RAISE EXCEPTION USING ERRCODE = 'JHMET';
EXCEPTION
    WHEN SQLSTATE 'JHMET' THEN NULL;
END $$;
