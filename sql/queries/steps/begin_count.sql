-- Make the running attempt of a job the first one of its count. Run in the transaction that records its first step, if the handler
-- declares attempts_per_step. Each statement that ends the attempt reads the count in this row.
-- Fencing: as each write about a running job. If the claim is lost, no row is found, and the record that follows finds none either.
UPDATE jobherd.running
   SET jobs = (SELECT array_agg(CASE WHEN j.id = %(job)s THEN jsonb_populate_record(j, '{"attempts": 0}') ELSE j END ORDER BY j.priority, j.id)
                 FROM unnest(jobs) AS j)
 WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = %(job)s)
RETURNING token
