-- Move up to %(most)s due jobs from scheduled to ready. Run by keepers at the time of the earliest. now() and not
-- clock_timestamp(): only a stable function can be an index condition.
WITH due AS MATERIALIZED (
    SELECT id FROM jobherd.scheduled WHERE run_at <= now() ORDER BY run_at, id LIMIT %(most)s FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM jobherd.scheduled WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING *
)
INSERT INTO jobherd.ready SELECT * FROM moved
