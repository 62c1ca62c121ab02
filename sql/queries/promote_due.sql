-- Move up to %(most)s due jobs from scheduled to ready. Run by keepers at the time of the earliest. now() and not
-- clock_timestamp(): only a stable function can be an index condition. Of large ones fewer are moved: behind ten megabytes nothing, or the
-- others that are due would wait for these. What has the id of a job that is ready, by raw SQL or from a sequence that was set back, stays until that has
-- gone: the server would refuse it, and all others with it.
WITH due AS MATERIALIZED (
    SELECT id, pg_column_size(payload) + coalesce(pg_column_size(extras), 0) AS bytes
      FROM jobherd.scheduled s
     WHERE run_at <= now() AND (SELECT true FROM ONLY jobherd.ready r WHERE r.id = s.id) IS NULL
     ORDER BY run_at, id LIMIT %(most)s FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT id, sum(bytes) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM due
), moved AS (
    DELETE FROM jobherd.scheduled WHERE id = ANY (ARRAY(SELECT id FROM counted WHERE before IS NULL OR before < 10000000)) RETURNING *
)
INSERT INTO jobherd.ready SELECT * FROM moved
