-- Delete the progress of jobs that no longer run. Run by maintenance processes.
DELETE FROM jobherd.progress p
 WHERE p.at < clock_timestamp() - interval '10 seconds'
   AND NOT EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE r.token = p.token AND j.id = p.job)
