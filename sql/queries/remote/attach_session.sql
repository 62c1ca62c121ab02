-- Resume a session at this gateway. Run by the gateway when a remote worker names its earlier session. From here
-- on, statements of the gateway that served it before find another number in `attached` and change nothing. Its
-- lease starts again, even if it had expired: as long as no supervisor has reclaimed the session, its jobs are
-- still its own. No row means that the session has ended, belongs to another client, or that the gateway's
-- supervisor has lost its own lease.
-- Parameters: supervisor (of this gateway), session, principal (the authenticated client), lease (seconds).
-- Columns: session, child, attached.
WITH held AS (
    UPDATE jobherd.supervisors s
       SET attached = s.attached + 1, via = %(supervisor)s, beat_at = clock_timestamp(),
           lease_until = clock_timestamp() + make_interval(secs => %(lease)s::double precision)
     WHERE s.id = %(session)s AND s.via IS NOT NULL AND s.principal = %(principal)s::text
       AND EXISTS (SELECT FROM jobherd.supervisors me
                    WHERE me.id = %(supervisor)s AND me.via IS NULL AND me.lease_until > clock_timestamp())
    RETURNING s.id, s.attached
)
SELECT held.id AS session, c.id AS child, held.attached
  FROM held JOIN jobherd.children c ON c.supervisor = held.id AND c.incarnation = 1
