-- What the supervisor of a running job has written down of what the job says, and for how long it goes on (null: it was not asked). No row if
-- the claim is over or its supervisor cannot be asked. Run by a page of another host, each second while somebody looks on.
SELECT s.id AS supervisor, s.facts -> 'said' -> %(id)s::text ->> 'text' AS said,
       (s.facts -> 'said' -> %(id)s::text ->> 'for')::double precision - extract(epoch FROM clock_timestamp() - s.facts_at)::double precision AS left
  FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child JOIN jobherd.supervisors s ON s.id = c.supervisor
 WHERE r.token = %(token)s AND s.lease_until > clock_timestamp()
