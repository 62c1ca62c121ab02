-- Show what a job's attempts have printed and logged, first attempt first. Run on users' request.
SELECT attempt, token, at, output, entries FROM jobherd.logs WHERE job = %(id)s ORDER BY at, token
