-- Return the steps of a job that are done. Run by its worker before the first step of an attempt.
SELECT name, result::text AS result, version FROM jobherd.steps WHERE job = %(job)s ORDER BY at, name
