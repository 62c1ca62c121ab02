-- Mark new concurrency limits as seen, and thus visible to every process: later claims respect them
-- (count_running in schema/13_limits.sql). Run by maintenance processes. A row that another session has locked is left for the next
-- time: due jobs must not wait for that.
WITH new AS MATERIALIZED (
    SELECT scope, name FROM jobherd.gates WHERE num_nonnulls(max_running, each_running) > 0 AND seen_at IS NULL FOR UPDATE SKIP LOCKED
)
UPDATE jobherd.gates g SET seen_at = clock_timestamp() FROM new n WHERE g.scope = n.scope AND g.name = n.name
