-- Look at the %(most)s jobs of the past with the lowest ids behind %(after)s, and delete, with their attempts and logs, those that ended by %(cutoff)s.
-- Run by people, again and again, each time behind the reached of the time before, until there is none: a step costs the same whatever the
-- past. Rows that somebody else holds (a retry, another purge) are left alone. The doomed are found again by their ids: a join is planned
-- by statistics, and read the whole past.
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
)
SELECT (SELECT count(*) FROM gone) AS jobs, (SELECT last FROM step) AS reached
