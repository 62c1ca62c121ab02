-- The rules of schema/01_jobs.sql, written shorter. Cost: PostgreSQL reads the
-- stored text of each constraint for each INSERT, which was a third of a single enqueue.
--
-- A comparison with a null is null and passes, a range excludes the infinities, and a timeout that is not a number
-- is larger than any other.

-- Returns whether a job of 256 kB or more may be stored: it has at most 64 MB, or has run before.
CREATE FUNCTION jobherd.is_large_job_allowed(
    payload json, extras jobherd.extras, last_error jsonb, attempts smallint, crashes smallint
)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN attempts > 0 OR crashes > 0
        OR CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE 4 + octet_length(payload::text) END
           + coalesce(CASE WHEN pg_column_compression(extras) IS NULL THEN pg_column_size(extras)
                           ELSE 4 + octet_length(extras::text) END, 0)
           + coalesce(CASE WHEN pg_column_compression(last_error) IS NULL THEN pg_column_size(last_error)
                           ELSE 4 + octet_length(last_error::text) END, 0) <= 67108864;
END $$;

DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY '{ready,scheduled,parked}'::text[] LOOP
        EXECUTE format(
            'ALTER TABLE jobherd.%I'
            ' DROP CONSTRAINT ready_kind_is_not_for_producers,'
            ' DROP CONSTRAINT ready_counts_are_counts,'
            ' DROP CONSTRAINT ready_is_created_in_our_time,'
            ' DROP CONSTRAINT ready_times_are_finite,'
            ' DROP CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb,'
            ' ADD CONSTRAINT ready_kind_is_not_for_producers CHECK ('
            '     NOT starts_with(kind, ''jobs:'') OR has_column_privilege(''jobherd.ready'', ''id'', ''INSERT'')),'
            ' ADD CONSTRAINT ready_counts_are_counts CHECK ('
            '     id > 0 AND least(attempts, crashes) >= 0 AND greatest(attempts, crashes) < 32767'
            '     AND max_attempts >= 1 AND timeout > 0 AND timeout < ''Infinity''),'
            ' ADD CONSTRAINT ready_is_created_in_our_time CHECK ('
            '     created_at > ''1900-01-01 00:00Z'' AND created_at < ''9000-01-01 00:00Z''),'
            ' ADD CONSTRAINT ready_times_are_finite CHECK ('
            '     least(run_at, expires_at) > ''1900-01-01 00:00Z'' AND greatest(run_at, expires_at) < ''9000-01-01 00:00Z''),'
            ' ADD CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb CHECK ('
            '     pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) < 262144'
            '     OR jobherd.is_large_job_allowed(payload, extras, last_error, attempts, crashes))', one);
    END LOOP;
END $$;
