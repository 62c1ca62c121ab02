-- Count the finished jobs that a purge would delete, by state, and return the timestamp it would count back
-- from. Run on users' request, before they purge.
WITH cut AS MATERIALIZED (
    SELECT clock_timestamp() - make_interval(secs => %(older)s::double precision) AS cutoff
), doomed AS (
    SELECT h.state, count(*) AS jobs
      FROM jobherd.history h
     WHERE h.finished_at <= (SELECT cutoff FROM cut) AND h.state = ANY (%(states)s::text[])
       AND (%(kind)s::text IS NULL OR h.kind = %(kind)s::text)
     GROUP BY h.state
)
SELECT cut.cutoff, d.state, coalesce(d.jobs, 0) AS jobs FROM cut LEFT JOIN doomed d ON true ORDER BY d.state
