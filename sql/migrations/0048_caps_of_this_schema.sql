-- The locks of caps are those of one schema: advisory locks are shared by all of a database, and a claim took the lock of a queue or a kind of the same name in
-- another schema for one whose holder would tell it of what is left, and slept. Claims that hold locks by the old numbers are waited for.
LOCK TABLE jobherd.gates IN ACCESS EXCLUSIVE MODE;

CREATE OR REPLACE FUNCTION jobherd.lock_cap(rank integer, name text, INOUT held integer, OUT had boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    key CONSTANT integer := hashtext('jobherd.' || rank || ' ' || name);
BEGIN
    IF held < rank THEN
        PERFORM pg_advisory_xact_lock(1785684586, key);
        had := true;
    ELSE
        had := pg_try_advisory_xact_lock(1785684586, key);
    END IF;
    IF had THEN held := greatest(held, rank); END IF;
END $$;
