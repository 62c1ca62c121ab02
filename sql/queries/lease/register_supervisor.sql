-- Register a supervisor with its first lease, and return the time that leases are compared with: a jump of the
-- clock before the first renewal would go unnoticed otherwise. Run by the supervisor when it connects, and again
-- under a new id when its lease was lost.
INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, lease_until)
VALUES (%(host)s, %(machine)s, %(pid)s::integer, %(pid_started)s::bigint, %(version)s,
        clock_timestamp() + make_interval(secs => %(lease)s::double precision))
RETURNING id, extract(epoch FROM clock_timestamp())::double precision AS now
