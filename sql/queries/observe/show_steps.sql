-- Show the durable steps that a job has recorded, first step first. Run on users' request.
SELECT name, result::text AS result, attempt, version, token, at FROM jobherd.steps WHERE job = %(id)s ORDER BY at, name
