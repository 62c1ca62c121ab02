-- Read the %(most)s finished jobs with the lowest ids after %(after)s, and delete those that finished by
-- %(cutoff)s, with their attempts, logs and steps. Run on users' request, repeatedly, each time after the `reached` of
-- the time before, until that is null: a step costs the same whatever the history. Rows that another session has
-- locked (a retry, another purge) are left alone. The rows to delete are found again by their ids: a join is
-- planned by statistics, and would read the whole history.
WITH step AS MATERIALIZED (
    SELECT max(id) AS last
      FROM (SELECT id FROM jobherd.history WHERE id > %(after)s::bigint ORDER BY id LIMIT %(most)s) AS next
), doomed AS MATERIALIZED (
    SELECT h.id
      FROM jobherd.history h
     WHERE h.id > %(after)s::bigint AND h.id <= (SELECT last FROM step)
       AND h.finished_at <= %(cutoff)s::timestamptz AND h.state = ANY (%(states)s::text[])
       AND (%(kind)s::text IS NULL OR h.kind = %(kind)s::text)
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobherd.history
     WHERE id = ANY (ARRAY(SELECT id FROM doomed)) AND finished_at <= %(cutoff)s::timestamptz AND state = ANY (%(states)s::text[])
    RETURNING id
), tried AS (
    DELETE FROM jobherd.attempts WHERE job = ANY (ARRAY(SELECT id FROM gone))
), logged AS (
    DELETE FROM jobherd.logs WHERE job = ANY (ARRAY(SELECT id FROM gone))
), stepped AS (
    DELETE FROM jobherd.steps WHERE job = ANY (ARRAY(SELECT id FROM gone))
)
SELECT (SELECT count(*) FROM gone) AS jobs, (SELECT last FROM step) AS reached
