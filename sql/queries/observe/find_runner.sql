-- Find where a job runs: the child process, and the supervisor that can be asked about it. One row if the job
-- exists; without a child process it does not run. A remote worker has no supervisor that can be asked: remote is
-- its name and the host of its gateway.
SELECT j.state, j.kind, c.id AS child, s.id AS supervisor, s.host, CASE WHEN c.kind = 'remote' THEN j.ran_on END AS remote
  FROM jobherd.jobs j
       LEFT JOIN jobherd.running r ON r.token = j.token AND j.state = 'running'
       LEFT JOIN jobherd.children c ON c.id = r.child
       LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor AND s.via IS NULL AND s.lease_until > clock_timestamp()
 WHERE j.id = %(id)s
