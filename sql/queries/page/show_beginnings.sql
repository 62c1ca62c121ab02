-- How far somebody has come who begins: whether a job was ever enqueued, a handler loaded, whether a supervisor is here, and whether some of the
-- past is still to be counted.
SELECT (SELECT is_called FROM jobherd.job_ids) AS enqueued, EXISTS (SELECT FROM jobherd.kinds) AS declared,
       EXISTS (SELECT FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS supervised,
       EXISTS (SELECT FROM jobherd.rollup_gaps) AS counting
