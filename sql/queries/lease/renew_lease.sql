-- Renew the lease, and notify this session, which tests the whole way of a notification, unless the server's
-- queue of them is full. No row means that another supervisor has reclaimed this one. Run by the supervisor
-- three times a lease, whatever the number of its child processes. It also checks for fleet commands: the
-- notification of one may be lost. And it returns the time that leases are compared with: a supervisor that
-- reclaims must know that the clock has not jumped.
WITH renewed AS (
    UPDATE jobherd.supervisors
       SET lease_until = clock_timestamp() + make_interval(secs => %(lease)s::double precision), beat_at = clock_timestamp()
     WHERE id = %(supervisor)s
    RETURNING id
)
SELECT id, jobherd.notify('jobherd_jobs', '@renewal:' || id) AS notified,
       EXISTS (SELECT FROM jobherd.fleet_commands o WHERE o.supervisor = renewed.id AND o.taken_at IS NULL AND o.done_at IS NULL) AS has_commands,
       extract(epoch FROM clock_timestamp())::double precision AS now
  FROM renewed
