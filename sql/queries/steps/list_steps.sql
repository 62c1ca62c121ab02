-- Return the steps of a job that are done, and the database's clock. Run by its worker before the first step of an attempt.
SELECT name, result::text AS result, version, extract(epoch FROM clock_timestamp())::float8 AS now
  FROM jobherd.steps WHERE job = %(job)s ORDER BY at, name
