-- Note that caps are seen, and so by everybody: what is claimed from now on is claimed under them (migrations/0046). Run by keepers. What somebody
-- holds is left for the next time: no due job waits for that.
WITH new AS MATERIALIZED (
    SELECT scope, name FROM jobherd.gates WHERE max_running IS NOT NULL AND seen_at IS NULL FOR UPDATE SKIP LOCKED
)
UPDATE jobherd.gates g SET seen_at = clock_timestamp() FROM new n WHERE g.scope = n.scope AND g.name = n.name
