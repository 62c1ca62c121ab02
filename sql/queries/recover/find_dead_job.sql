-- Read what an on_death hook gets about a job in addition to what the supervisor has. Run by the maintenance
-- process when a process has died with a job.
SELECT queue, priority, payload::text, date_part('epoch', created_at), date_part('epoch', run_at) FROM jobherd.jobs WHERE id = %(id)s
