-- Reclaim what other supervisors left: those whose lease has expired, and those of this host that are known to
-- be dead (%(dead)s). The same for sessions of remote workers. Run by every supervisor at each renewal of its
-- lease. Returns how many supervisors there were, how many jobs they held together with the sessions, their hosts
-- and the names of the remote workers, and how many sessions there were.
--
-- The attempt stays counted, no crash is counted, and each job is next claimed alone: if it killed its whole
-- host, it must not cost the jobs claimed with it a second time. A job without attempts left fails here, or
-- nothing would ever end it. The lock of the row checks the lease again, so a renewal that comes first wins. After
-- PostgreSQL was away, no supervisor is reclaimed before all had one whole lease to renew.
-- A last renewal in the future was before the server's clock was set back: living supervisors have renewed
-- since, and a dead host's lease would last for as long as the clock has jumped. Leases are compared with the
-- time that the caller's renewal returned (%(clock)s, seconds; NULL: the current time): after a later jump of
-- the clock, every lease would count as expired. What was claimed before the clock was set back began in the
-- future; no row of the history may end before it began.
-- Order: like every statement it names history before attempts, because the maintenance process locks them in
-- that order.
-- A claim is locked by the open transaction of its job. The session of that transaction is ended here, and the
-- job is left to requeue_orphans.sql, shortly after. Waiting for it would delay all others, and the server may
-- take hours to notice that a host is dead. If this role must not end that session, the job waits until the
-- server ends it. requeue_orphans.sql also handles a claim of a job whose id a ready job has: the server would
-- reject it, and all others with it. If two jobs return with one id, the second one gets another, as in a claim
-- that parks.
-- A row that another session has locked is left for the next time: it is being renewed, or a gateway that was
-- stopped holds it, which must not delay the others.
WITH expired AS MATERIALIZED (
    SELECT id
      FROM jobherd.supervisors
     WHERE id <> %(supervisor)s
       AND (id = ANY (%(dead)s::bigint[])
            OR ((lease_until < coalesce(to_timestamp(%(clock)s::double precision), clock_timestamp())
                 OR beat_at > coalesce(to_timestamp(%(clock)s::double precision), clock_timestamp())
                              + make_interval(secs => %(lease)s::double precision))
                AND %(patient)s::boolean
                AND pg_postmaster_start_time() NOT BETWEEN clock_timestamp() - make_interval(secs => %(lease)s::double precision)
                                                       AND clock_timestamp()))
       FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM jobherd.supervisors s USING expired WHERE s.id = expired.id RETURNING s.id, s.host, s.via
), gone AS (
    DELETE FROM jobherd.children c USING removed l WHERE c.supervisor = l.id
    RETURNING c.id, CASE WHEN l.via IS NULL THEN l.host || '/' || c.pid
                         ELSE concat_ws(' via ', l.host, (SELECT v.host FROM jobherd.supervisors v WHERE v.id = l.via)) END AS ran_on,
              l.via IS NOT NULL AS remote, c.transaction_pid, c.transaction_started
), ended AS MATERIALIZED (
    SELECT count(jobherd.end_session(g.transaction_pid, g.transaction_started)) AS sessions FROM gone g WHERE g.transaction_pid IS NOT NULL
), free AS MATERIALIZED (
    SELECT r.child, r.token, g.ran_on, g.remote
      FROM jobherd.running r JOIN gone g ON g.id = r.child
     WHERE (SELECT sessions FROM ended) >= 0
       AND NOT EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE (SELECT true FROM jobherd.ready w WHERE w.id = j.id))
       FOR UPDATE OF r SKIP LOCKED
), held AS (
    SELECT f.remote, array_agg(f.child) AS children, array_agg(f.token) AS tokens, array_agg(f.ran_on) AS ran_on FROM free f GROUP BY f.remote
)
SELECT (SELECT count(*) FROM removed WHERE via IS NULL) AS supervisors, count(b.id) AS jobs,
       (SELECT string_agg(host, ', ') FROM removed) AS hosts, (SELECT count(*) FROM removed WHERE via IS NOT NULL) AS sessions
  FROM held h
  LEFT JOIN LATERAL jobherd.requeue(h.children, h.tokens, ran_on => h.ran_on, lost => true,
                                    message => CASE WHEN h.remote THEN 'its remote worker was lost' ELSE 'its supervisor was lost' END,
                                    detail => CASE WHEN h.remote THEN 'its remote worker was lost: the lease of its session expired'
                                                   ELSE 'its supervisor was lost: the lease expired or the process died' END) AS b ON true
