-- Delete up to %(most)s jobs of the past that ended from %(since)s to %(cutoff)s, the oldest first, with their attempts. Run by people,
-- again and again, each time from the reached of the time before: so no batch steps over what the earlier ones deleted. Rows that
-- somebody else holds (a retry, another purge) are left alone.
WITH doomed AS MATERIALIZED (
    SELECT h.id, h.finished_at
      FROM jobherd.history h
     WHERE h.finished_at <= %(cutoff)s::timestamptz AND h.finished_at >= %(since)s::timestamptz AND h.state = ANY (%(states)s::text[])
       AND (%(kind)s::text IS NULL OR h.kind = %(kind)s::text)
     ORDER BY h.finished_at
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobherd.history h USING doomed d WHERE h.id = d.id AND h.finished_at = d.finished_at RETURNING h.id
), tried AS (
    DELETE FROM jobherd.attempts a USING gone g WHERE a.job = g.id
)
SELECT (SELECT count(*) FROM gone) AS jobs, (SELECT max(finished_at) FROM doomed) AS reached
