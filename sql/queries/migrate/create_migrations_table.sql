-- Create the table of the applied migrations, and the schema if it is missing. PostgreSQL requires the right to
-- create a schema even if it exists, and a DBA may have created it for a role without that right.
DO $$
BEGIN
    IF to_regnamespace(split_part('jobherd.migrations', '.', 1)) IS NULL THEN
        CREATE SCHEMA IF NOT EXISTS jobherd;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS jobherd.migrations (
    area       text        NOT NULL,
    version    integer     NOT NULL,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (area, version)
)
