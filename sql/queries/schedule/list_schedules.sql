-- Return all schedules, by name. Run by the command line and the dashboard.
SELECT s.name, s.kind, s.cron, s.every, s.tz, s.payload, s.options, s.next_at, s.last_at, s.last_job, s.declared, s.edited_by,
       s.edited_at, s.paused_at, s.paused_by, s.pause_reason, s.resume_at, s.retired_at, s.backfill, s.error
  FROM jobherd.schedules s
 ORDER BY s.name
