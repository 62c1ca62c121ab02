-- Drop the scratch schema of a measurement with all its contents. Raises an error for any other schema. Run by
-- `jobherd bench`.
DO $$
DECLARE
    scratch text := split_part('jobherd.scratch', '.', 1);  -- the schema this text was loaded for
BEGIN
    IF NOT starts_with(scratch, 'jobherd_bench_') THEN
        RAISE EXCEPTION '% is not a scratch schema', scratch;
    END IF;
    EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', scratch);
END $$
