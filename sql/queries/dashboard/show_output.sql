-- Read the live output that the supervisor of a running job has stored, and for how long it keeps storing (null:
-- it was not asked to). No row if the claim is over or its supervisor cannot be asked. Run each second by a
-- dashboard on another host while the page of the job is open.
SELECT s.id AS supervisor, s.facts -> 'said' -> %(id)s::text ->> 'text' AS said,
       (s.facts -> 'said' -> %(id)s::text ->> 'for')::double precision - extract(epoch FROM clock_timestamp() - s.facts_at)::double precision AS left
  FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child JOIN jobherd.supervisors s ON s.id = c.supervisor
 WHERE r.token = %(token)s AND s.via IS NULL AND s.lease_until > clock_timestamp()
