-- Note that a remote worker needs more time for jobs, and renew the lease of its session. Run by a gateway that
-- receives a heartbeat of a session that another gateway may serve. A job that is missing in the answer is not
-- claimed by the session any more: the worker has lost it. Time is never shortened. Without a session of this
-- client, there is no row. With an empty list of jobs it only renews the lease.
-- Parameters: session, principal (the authenticated client), jobs and tokens (arrays of equal length), extend
-- (seconds from now), lease (seconds: of the session).
-- Columns: session, token, job. One row at least: without a held job, token and job are null.
WITH beat AS (
    UPDATE jobherd.supervisors
       SET lease_until = greatest(lease_until, clock_timestamp() + make_interval(secs => %(lease)s::double precision)), beat_at = clock_timestamp()
     WHERE id = %(session)s AND via IS NOT NULL AND principal = %(principal)s::text
    RETURNING id
), held AS MATERIALIZED (
    SELECT DISTINCT b.id AS session, w.token, w.job
      FROM beat b
      JOIN jobherd.children c ON c.supervisor = b.id
     CROSS JOIN unnest(%(jobs)s::bigint[], %(tokens)s::bigint[]) AS w (job, token)
      JOIN jobherd.running r ON r.child = c.id AND r.token = w.token
     WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = w.job)
), old AS (
    DELETE FROM jobherd.extensions e
     USING (SELECT o.session, o.token, o.job
              FROM jobherd.extensions o JOIN beat b ON b.id = o.session
             WHERE o.expires_at < clock_timestamp() AND NOT EXISTS (SELECT FROM held h WHERE (h.token, h.job) = (o.token, o.job))
               FOR UPDATE OF o SKIP LOCKED) AS o
     WHERE (e.session, e.token, e.job) = (o.session, o.token, o.job)
), noted AS (
    INSERT INTO jobherd.extensions AS e (session, token, job, expires_at)
    SELECT session, token, job, clock_timestamp() + make_interval(secs => %(extend)s::double precision)
      FROM held
     ORDER BY token, job  -- one lock order, as in take_extensions.sql: they would deadlock otherwise
    ON CONFLICT (session, token, job) DO UPDATE SET expires_at = greatest(e.expires_at, excluded.expires_at)
)
SELECT b.id AS session, h.token, h.job FROM beat b LEFT JOIN held h ON true
