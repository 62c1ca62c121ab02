-- A job with an id below 1, which only raw SQL can make, ended every worker that claimed it. Such rows get an id from the sequence.
UPDATE jobherd.ready SET id = nextval('jobherd.job_ids') WHERE id < 1;  -- parked too, which inherits
UPDATE jobherd.scheduled SET id = nextval('jobherd.job_ids') WHERE id < 1;
UPDATE jobherd.running r
   SET jobs = (SELECT array_agg(CASE WHEN j.id < 1 THEN json_populate_record(j, json_build_object('id', nextval('jobherd.job_ids'))) ELSE j END ORDER BY j.priority, j.id)
                 FROM unnest(r.jobs) AS j)
 WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id < 1);

-- One constraint for all numbers: PostgreSQL reads the text of each CHECK for every INSERT.
ALTER TABLE jobherd.ready
    DROP CONSTRAINT ready_counts_are_counts,
    DROP CONSTRAINT ready_counts_can_grow,
    ADD CONSTRAINT ready_counts_are_counts
        CHECK (id > 0 AND attempts >= 0 AND attempts < 32767 AND crashes >= 0 AND crashes < 32767 AND max_attempts >= 1
               AND timeout > 0 AND timeout < 'infinity') NOT VALID;
ALTER TABLE jobherd.scheduled
    DROP CONSTRAINT ready_counts_are_counts,
    DROP CONSTRAINT scheduled_counts_can_grow,
    ADD CONSTRAINT ready_counts_are_counts
        CHECK (id > 0 AND attempts >= 0 AND attempts < 32767 AND crashes >= 0 AND crashes < 32767 AND max_attempts >= 1
               AND timeout > 0 AND timeout < 'infinity') NOT VALID;

-- Kinds that begin with `jobs:` are Jobherd's own: they act with a worker's rights, or sign with a secret of all tenants. A role that may not choose
-- the id of a job, a producer's or a tenant's, may not enqueue them.
ALTER TABLE jobherd.ready
    ADD CONSTRAINT ready_kind_is_not_for_producers
        CHECK (kind < 'jobs:' OR kind >= 'jobs;' OR has_column_privilege('jobherd.ready', 'id', 'INSERT')) NOT VALID;
ALTER TABLE jobherd.scheduled
    ADD CONSTRAINT scheduled_kind_is_not_for_producers
        CHECK (kind < 'jobs:' OR kind >= 'jobs;' OR has_column_privilege('jobherd.ready', 'id', 'INSERT')) NOT VALID;

-- Roles that may only enqueue give what an enqueue gives, and nothing else: no id, no time of creation, no counts.
CREATE OR REPLACE FUNCTION jobherd.let_enqueue(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('REVOKE INSERT ON jobherd.ready, jobherd.scheduled FROM %I', let_enqueue.role);
    EXECUTE format('GRANT SELECT, INSERT (run_at, good_until, timeout, priority, max_attempts, queue, kind, payload, extras)'
                   ' ON jobherd.ready, jobherd.scheduled TO %I', let_enqueue.role);
END $$;

SELECT jobherd.let_enqueue(role) FROM (SELECT DISTINCT t.role FROM jobherd.tenants t JOIN pg_roles r ON r.rolname = t.role) AS known;
