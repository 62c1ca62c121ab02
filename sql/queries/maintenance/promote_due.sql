-- Move up to %(most)s due jobs from scheduled to ready. Run by maintenance processes when the earliest job is
-- due. Uses now(), not clock_timestamp(): only a stable function can be an index condition. No job is moved
-- after 10 MB of payload, or the other due jobs would wait for large ones. A job whose id a ready job has (by
-- raw SQL, or from a sequence that was set back) stays until that one is gone: the server would reject it, and
-- all others with it.
WITH due AS MATERIALIZED (
    SELECT id, pg_column_size(payload) + coalesce(pg_column_size(extras), 0) AS bytes
      FROM jobherd.scheduled s
     WHERE run_at <= now() AND (SELECT true FROM jobherd.ready r WHERE r.id = s.id) IS NULL
     ORDER BY run_at, id LIMIT %(most)s FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT id, sum(bytes) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM due
), moved AS (
    DELETE FROM jobherd.scheduled WHERE id = ANY (ARRAY(SELECT id FROM counted WHERE before IS NULL OR before < 10000000)) RETURNING *
)
INSERT INTO jobherd.ready SELECT * FROM moved
