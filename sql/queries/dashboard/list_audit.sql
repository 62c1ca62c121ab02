-- List audit entries, latest first: those with numbers below %(before)s, of one actor or one action if these are
-- given. Reads by index, so a page costs the same wherever it begins.
SELECT a.id, a.at, a.actor, a.role, a.action, a.target, a.reason
  FROM jobherd.audit a
 WHERE a.id < coalesce(%(before)s::bigint, 9223372036854775807)
   AND (%(actor)s::text IS NULL OR a.actor = %(actor)s::text)
   AND (%(action)s::text IS NULL OR a.action = %(action)s::text)
 ORDER BY a.id DESC
 LIMIT %(most)s::integer
