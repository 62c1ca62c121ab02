-- Beat: renew the lease, and notify ourselves, which proves the whole way of a notification, unless the server's queue of them is full. No row says that somebody has
-- reclaimed us. Run by the parent three times a lease, whatever the number of its children. It looks for orders as well: the notification
-- of one may be lost. And it tells the time by which leases are reckoned: whoever takes over must know that it has not jumped.
WITH beat AS (
    UPDATE jobherd.supervisors
       SET lease_until = clock_timestamp() + make_interval(secs => %(lease)s::double precision), beat_at = clock_timestamp()
     WHERE id = %(supervisor)s
    RETURNING id
)
SELECT id, jobherd.notify('jobherd_jobs', '@beat:' || id) AS told,
       EXISTS (SELECT FROM jobherd.orders o WHERE o.supervisor = beat.id AND o.taken_at IS NULL AND o.done_at IS NULL) AS ordered,
       extract(epoch FROM clock_timestamp())::double precision AS now
  FROM beat
