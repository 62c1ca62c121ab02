-- Renew the leases of the sessions that this gateway serves, all in one statement. Run by the gateway three times
-- a lease. A lease of 0 ends sessions at once: the next supervisor that renews its own lease reclaims their jobs.
-- Such a session can still be resumed until then. A session that is missing in the answer was resumed at another
-- gateway, or reclaimed. Without a lease of the gateway's supervisor, no session is renewed: after an outage the
-- gateway may be back before its supervisor, and its sessions are still its own.
-- Parameters: supervisor (of this gateway), sessions and attached (arrays of equal length), lease (seconds).
-- Columns: session, renewed.
-- Order: the rows are locked by id. Two gateways that renew the same sessions would deadlock otherwise.
WITH mine AS MATERIALIZED (
    SELECT s.id
      FROM jobherd.supervisors s
      JOIN unnest(%(sessions)s::bigint[], %(attached)s::integer[]) AS n (id, attached) ON s.id = n.id AND s.attached = n.attached
     ORDER BY s.id
       FOR NO KEY UPDATE OF s
), renewed AS (
    UPDATE jobherd.supervisors s
       SET lease_until = clock_timestamp() + make_interval(secs => %(lease)s::double precision), beat_at = clock_timestamp()
      FROM mine
     WHERE s.id = mine.id
       AND (%(lease)s::double precision = 0
            OR EXISTS (SELECT FROM jobherd.supervisors me
                        WHERE me.id = %(supervisor)s AND me.via IS NULL AND me.lease_until > clock_timestamp()))
    RETURNING s.id
)
SELECT m.id AS session, r.id IS NOT NULL AS renewed FROM mine m LEFT JOIN renewed r ON r.id = m.id
