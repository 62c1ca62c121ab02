-- Find where a job runs: the child process, and the supervisor that can be asked about it. One row if the job
-- exists; without a child process it does not run.
SELECT j.state, j.kind, c.id AS child, s.id AS supervisor, s.host
  FROM jobherd.jobs j
       LEFT JOIN jobherd.running r ON r.token = j.token AND j.state = 'running'
       LEFT JOIN jobherd.children c ON c.id = r.child
       LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor AND s.lease_until > clock_timestamp()
 WHERE j.id = %(id)s
