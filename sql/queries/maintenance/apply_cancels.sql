-- Apply the requests to cancel that no attempt will answer. A job that is back in the queue is canceled there:
-- its request was committed after the settlement or release. A request about a finished job is deleted. Returns
-- the canceled jobs. Run by maintenance processes while there are requests.
--
-- Race: one snapshot says where the job is and whether there is a request. A job is in one table in every
-- snapshot, so one in none of ready, parked, scheduled and running is finished. If a user retries it meanwhile,
-- the retry deletes the request, which is then skipped here. A waiting job that another session has locked is
-- left for the next time: if it is being claimed, find_cancels.sql finds it.
WITH asked AS MATERIALIZED (
    SELECT x.job, x.asked_at
      FROM jobherd.cancels x
     WHERE x.job NOT IN (SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j)
     ORDER BY x.job
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT id FROM jobherd.ready WHERE id = ANY (ARRAY(SELECT job FROM asked)) FOR UPDATE SKIP LOCKED
), parked AS MATERIALIZED (
    SELECT id FROM jobherd.parked WHERE id = ANY (ARRAY(SELECT job FROM asked)) FOR UPDATE SKIP LOCKED
), scheduled AS MATERIALIZED (
    SELECT id FROM jobherd.scheduled WHERE id = ANY (ARRAY(SELECT job FROM asked)) FOR UPDATE SKIP LOCKED
), waiting AS (
    DELETE FROM jobherd.ready WHERE id = ANY (ARRAY(SELECT id FROM ready)) RETURNING *
), aside AS (
    DELETE FROM jobherd.parked WHERE id = ANY (ARRAY(SELECT id FROM parked)) RETURNING *
), later AS (
    DELETE FROM jobherd.scheduled WHERE id = ANY (ARRAY(SELECT id FROM scheduled)) RETURNING *
), gone AS MATERIALIZED (
    SELECT * FROM waiting UNION ALL SELECT * FROM aside UNION ALL SELECT * FROM later
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, error_code, error)
    SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
           g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout, 'JOB_CANCELLED', 'cancelled while it waited'
      FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
), answered AS (
    DELETE FROM jobherd.cancels x
     USING asked a
     WHERE x.job = a.job AND x.asked_at = a.asked_at
       AND (a.job IN (SELECT id FROM gone)
            OR (NOT EXISTS (SELECT FROM jobherd.waiting w WHERE w.id = a.job)
                AND NOT EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = a.job)))
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM gone
)
SELECT id FROM gone LEFT JOIN told ON true
