-- List these jobs with their states, newest first. Run by the dashboard before an action on them, to count them.
SELECT j.id, j.state FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
