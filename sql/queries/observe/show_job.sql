-- Show one job, live or finished.
SELECT * FROM jobherd.jobs WHERE id = %(id)s
