-- Count the jobs in each state, at most %(most)s of each by its index, for the tabs of the list; of the jobs that did not
-- complete, those among the newest %(most)s. Completed jobs are not counted. `capped`: there are more. A job that waits for
-- another attempt is looked for among the next %(most)s by time.
WITH later AS MATERIALIZED (
    SELECT s.attempts > 0 AS again FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
), waiting AS MATERIALIZED (
    SELECT w.attempts > 0 AS again FROM jobherd.waiting w LIMIT %(most)s::bigint
), troubled AS MATERIALIZED (
    SELECT h.state FROM jobherd.history h WHERE h.state <> 'completed' ORDER BY h.id DESC LIMIT %(most)s::bigint / 10
), cut AS MATERIALIZED (
    SELECT (SELECT count(*) FROM later) >= %(most)s::bigint AS later, (SELECT count(*) FROM waiting) >= %(most)s::bigint AS waiting,
           (SELECT count(*) FROM troubled) >= %(most)s::bigint / 10 AS troubled
)
SELECT 'running' AS state, (SELECT coalesce(sum(cardinality(r.jobs)), 0)::bigint FROM jobherd.running r) AS jobs, false AS capped
UNION ALL SELECT 'ready', (SELECT count(*) FROM waiting WHERE NOT again), (SELECT waiting FROM cut)
UNION ALL SELECT 'retrying', (SELECT count(*) FROM later WHERE again) + (SELECT count(*) FROM waiting WHERE again), (SELECT waiting OR later FROM cut)
UNION ALL SELECT 'scheduled', (SELECT count(*) FROM later WHERE NOT again), (SELECT later FROM cut)
UNION ALL SELECT 'blocked', b.jobs, b.jobs >= %(most)s::bigint FROM (SELECT count(*) AS jobs FROM (SELECT FROM jobherd.blocked LIMIT %(most)s::bigint) AS b) AS b
UNION ALL SELECT s.state, (SELECT count(*) FROM troubled t WHERE t.state = s.state), (SELECT troubled FROM cut)
  FROM unnest('{failed,cancelled,expired}'::text[]) AS s (state)
