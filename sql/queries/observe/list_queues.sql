-- List the queues that hold jobs or have a pause or limit, with what they hold: each job in the one state that
-- `jobherd jobs` shows. Run on users' request. It counts the backlog, and never reads the history.
WITH waiting AS (
    SELECT queue, count(*) FILTER (WHERE attempts = 0) AS ready, count(*) FILTER (WHERE attempts > 0) AS retrying, min(run_at) AS oldest
      FROM jobherd.waiting GROUP BY queue
), later AS (
    SELECT queue, count(*) FILTER (WHERE attempts = 0) AS scheduled, count(*) FILTER (WHERE attempts > 0) AS retrying, min(run_at) AS next
      FROM jobherd.scheduled GROUP BY queue
), busy AS (
    SELECT queue, sum(cardinality(jobs))::bigint AS running FROM jobherd.running GROUP BY queue
), halted AS (
    SELECT name AS queue, paused_at, paused_by, reason, resume_at, max_running FROM jobherd.gates WHERE scope = 'queue'
)
SELECT queue, coalesce(w.ready, 0) AS ready, coalesce(l.scheduled, 0) AS scheduled, coalesce(b.running, 0) AS running,
       coalesce(w.retrying, 0) + coalesce(l.retrying, 0) AS retrying, w.oldest AS oldest_ready,
       extract(epoch FROM clock_timestamp() - w.oldest)::double precision AS oldest_age, l.next AS next_scheduled,
       h.paused_at IS NOT NULL AS paused, h.paused_at, h.paused_by, h.reason, h.resume_at, h.max_running
  FROM waiting w FULL JOIN later l USING (queue) FULL JOIN busy b USING (queue) FULL JOIN halted h USING (queue)
 ORDER BY queue
