-- A job by raw SQL is created between the years 1900 and 9000, as it runs then: one of another time, which no Python datetime holds, was let in, and whoever listed jobs
-- where it stood among them got an error instead, on the command line and on the page, for as long as it was kept.
UPDATE jobherd.ready SET created_at = now() WHERE NOT (created_at > '1900-01-01 00:00Z' AND created_at < '9000-01-01 00:00Z');
UPDATE jobherd.scheduled SET created_at = now() WHERE NOT (created_at > '1900-01-01 00:00Z' AND created_at < '9000-01-01 00:00Z');
-- Those that run too: whoever gives one back would be refused, with all others of its claim.
UPDATE jobherd.running r
   SET jobs = (SELECT array_agg((j.id, CASE WHEN j.created_at > '1900-01-01 00:00Z' AND j.created_at < '9000-01-01 00:00Z' THEN j.created_at ELSE now() END,
                                 j.run_at, j.good_until, j.timeout, j.last_error, j.priority, j.attempts, j.max_attempts, j.crashes, j.alone, j.queue,
                                 j.kind, j.payload, j.extras)::jobherd.ready ORDER BY j.priority, j.id) FROM unnest(r.jobs) AS j)
 WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE NOT (j.created_at > '1900-01-01 00:00Z' AND j.created_at < '9000-01-01 00:00Z'));

ALTER TABLE jobherd.ready
    ADD CONSTRAINT ready_is_created_in_our_time CHECK (created_at > '1900-01-01 00:00Z' AND created_at < '9000-01-01 00:00Z') NOT VALID;
ALTER TABLE jobherd.scheduled
    ADD CONSTRAINT scheduled_is_created_in_our_time CHECK (created_at > '1900-01-01 00:00Z' AND created_at < '9000-01-01 00:00Z') NOT VALID;
