-- A value that is put in from another table comes as it lies there, compressed: 70 MB were 801,292 bytes to pg_column_size and passed. From running
-- they come back plain, and were refused there: whoever gave such a job back without an attempt was refused all that it wanted to give back, again
-- and again. What comes compressed is measured as long as it is. Nothing below 256 kB is looked at: no method makes more than 64 MB so small.
ALTER TABLE jobherd.ready
    DROP CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb,
    ADD CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb CHECK (
        attempts > 0 OR crashes > 0
        OR CASE WHEN pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) < 262144 THEN true
                ELSE CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload) ELSE 4 + octet_length(payload::text) END
                   + coalesce(CASE WHEN pg_column_compression(extras) IS NULL THEN pg_column_size(extras) ELSE 4 + octet_length(extras::text) END, 0)
                   + coalesce(CASE WHEN pg_column_compression(last_error) IS NULL THEN pg_column_size(last_error)
                                   ELSE 4 + octet_length(last_error::text) END, 0) <= 67108864 END) NOT VALID;
ALTER TABLE jobherd.scheduled
    DROP CONSTRAINT scheduled_payload_extras_and_last_error_are_at_most_64_mb,
    ADD CONSTRAINT scheduled_payload_extras_and_last_error_are_at_most_64_mb CHECK (
        attempts > 0 OR crashes > 0
        OR CASE WHEN pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) < 262144 THEN true
                ELSE CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload) ELSE 4 + octet_length(payload::text) END
                   + coalesce(CASE WHEN pg_column_compression(extras) IS NULL THEN pg_column_size(extras) ELSE 4 + octet_length(extras::text) END, 0)
                   + coalesce(CASE WHEN pg_column_compression(last_error) IS NULL THEN pg_column_size(last_error)
                                   ELSE 4 + octet_length(last_error::text) END, 0) <= 67108864 END) NOT VALID;
