-- Sum the changed lines per language of a push, the most changed first. Run by push:process.
SELECT l.key AS language, sum((l.value ->> 0)::bigint) AS added, sum((l.value ->> 1)::bigint) AS deleted
  FROM jobherd.forge_commits c CROSS JOIN LATERAL jsonb_each(c.languages) AS l
 WHERE c.push_event = %(id)s
 GROUP BY l.key
 ORDER BY sum((l.value ->> 0)::bigint + (l.value ->> 1)::bigint) DESC, l.key
