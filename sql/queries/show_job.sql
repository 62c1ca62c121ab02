-- One job, live or past.
SELECT * FROM jobherd.jobs WHERE id = %(id)s
