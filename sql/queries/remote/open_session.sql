-- Open a session of a remote worker: register it with its first lease, and its claims' owner in `children`. Run
-- by the gateway. No row means that the gateway's supervisor has lost its own lease.
-- Parameters: supervisor (of this gateway), worker (its name, shown as the host), version (of the client),
-- principal (the authenticated client: only it may resume the session), lease (seconds).
-- Columns: session, child (the owner of its claims, as in claim_jobs.sql), attached (1).
WITH me AS (
    SELECT id FROM jobherd.supervisors WHERE id = %(supervisor)s AND via IS NULL AND lease_until > clock_timestamp()
), session AS (
    INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, lease_until, via, attached, principal)
    SELECT %(worker)s, 'remote', 0, 0, %(version)s, clock_timestamp() + make_interval(secs => %(lease)s::double precision), id, 1,
           %(principal)s::text
      FROM me
    RETURNING id, attached
), child AS (
    INSERT INTO jobherd.children (supervisor, incarnation, slot, kind, pid, pid_started, backend_pid, backend_started)
    SELECT id, 1, 0, 'remote', 0, 0, 0, clock_timestamp() FROM session
    RETURNING id
)
SELECT session.id AS session, child.id AS child, session.attached FROM session CROSS JOIN child
