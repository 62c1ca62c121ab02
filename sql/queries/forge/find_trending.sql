-- Return whether a job has appended its snapshot. Run by trending:compute.
SELECT id FROM jobherd.forge_trending WHERE job = %(job)s LIMIT 1
