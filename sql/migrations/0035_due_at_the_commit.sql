-- Whether a scheduled job is the first to come due is looked at when it is committed, and not when it is put in: the one that was before it may
-- have come due meanwhile, and the keeper, who had found no other, slept past this one until its poll. A time that is as good as now is nobody's
-- to rely on: the keeper may look before this commit is there to see. Nor is what a transaction with an older snapshot sees. Once for each
-- transaction, and again for what is sooner than all before: `jobherd.due` is the earliest so far. As its owner, for whoever commits may see nothing here.
DROP TRIGGER wake ON jobherd.scheduled;

CREATE OR REPLACE FUNCTION jobherd.wake_scheduled() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' AS $$
DECLARE
    soon CONSTANT timestamptz := clock_timestamp() + interval '200 ms';
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
       OR ((SELECT s.run_at FROM jobherd.scheduled s WHERE s.run_at > soon ORDER BY s.run_at LIMIT 1) < NEW.run_at) IS NOT TRUE THEN
        PERFORM jobherd.notify('jobherd_jobs', '@due');
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON jobherd.scheduled DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (CASE WHEN extract(epoch FROM NEW.run_at) >= nullif(current_setting('jobherd.due', true), '')::numeric THEN false
               ELSE set_config('jobherd.due', extract(epoch FROM NEW.run_at)::text, true) IS NOT NULL END)
    EXECUTE FUNCTION jobherd.wake_scheduled();
