-- Show how far a new installation is: whether a job was ever enqueued, a handler loaded, a supervisor is
-- running, and whether part of the history is not counted yet.
SELECT (SELECT is_called FROM jobherd.job_ids) AS enqueued, EXISTS (SELECT FROM jobherd.kinds) AS declared,
       EXISTS (SELECT FROM jobherd.supervisors WHERE via IS NULL AND lease_until > clock_timestamp()) AS supervised,
       EXISTS (SELECT FROM jobherd.rollup_gaps) AS counting
