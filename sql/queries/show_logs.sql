-- What a job's attempts have printed and logged, the first attempt first. Run by people.
SELECT attempt, token, at, output, entries FROM jobherd.logs WHERE job = %(id)s ORDER BY at, token
