-- Show what a running job was asked for (its stack, or a profile) and the answer, as long as the row in
-- `fleet_commands` is kept. Run by the dashboard.
SELECT o.name, o.done_at, o.answer, o.error, extract(epoch FROM clock_timestamp() - o.asked_at)::double precision AS age,
       (o.arguments ->> 'seconds')::double precision AS takes
  FROM jobherd.fleet_commands o
 WHERE o.id = %(order)s AND o.name IN ('stack', 'profile') AND o.arguments ->> 'job' = %(job)s::text
