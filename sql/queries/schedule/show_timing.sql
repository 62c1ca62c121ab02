-- When a schedule enqueues its jobs, for services that watch it. Run by a worker, once for each schedule.
SELECT cron, every, tz FROM jobherd.schedules WHERE name = %(name)s::text
