-- One migrator at a time, for the length of its transaction: five supervisors may start on one empty database.
SELECT pg_advisory_xact_lock(hashtext('jobherd.migrations'))
