-- Take the lock for one migrator at a time, until its transaction ends: five supervisors may start on one empty
-- database.
SELECT pg_advisory_xact_lock(hashtext('jobherd.migrations'))
