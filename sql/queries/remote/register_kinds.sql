-- Store what a remote worker declares about kinds, where it differs. Run by the gateway when it opens a session. As
-- lease/register_kinds.sql, with two differences: a kind keeps its stored retention if the worker declares none, and
-- its redacted parts if the worker declares none. A client in another language that does not know them would
-- otherwise show users what a handler hides. Of a kind in only_names, the worker declares nothing but the name: it is
-- stored with the defaults if it is new.
WITH declared AS (
    SELECT n.name, n.queue, n.priority, n.a, n.c, coalesce(n.kc, k.keep_completed, 30) AS kc, coalesce(n.kf, k.keep_failed, 30) AS kf,
           coalesce(nullif(n.redact::jsonb, '[]'), k.redact, '[]') AS redact,
           n.only_name AND k.name IS NOT NULL AS known
      FROM unnest(%(names)s::text[], %(queues)s::text[], %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(max_crashes)s::smallint[],
                  %(keep_completed)s::integer[], %(keep_failed)s::integer[], %(redacts)s::text[],
                  %(only_names)s::boolean[])
           AS n (name, queue, priority, a, c, kc, kf, redact, only_name)
           LEFT JOIN jobherd.kinds k ON k.name = n.name
)
INSERT INTO jobherd.kinds AS k (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)
SELECT d.name, d.queue, d.priority, d.a, d.c, d.kc, d.kf, d.redact
  FROM declared d
 WHERE NOT d.known
   AND NOT EXISTS (SELECT FROM jobherd.kinds o
                    WHERE o.name = d.name
                      AND (o.queue, o.priority, o.max_attempts, o.max_crashes, o.keep_completed, o.keep_failed, o.redact)
                          IS NOT DISTINCT FROM (d.queue, d.priority, d.a, d.c, d.kc, d.kf, d.redact))
 ORDER BY d.name  -- one lock order: sessions and child processes that start together would deadlock otherwise
ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, max_crashes = excluded.max_crashes,
       keep_completed = excluded.keep_completed, keep_failed = excluded.keep_failed, redact = excluded.redact, seen_at = clock_timestamp()
