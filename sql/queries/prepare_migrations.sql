-- The place where migrations are noted; the schema with it. PostgreSQL asks for the right to create a schema even where it exists, and a DBA
-- may have made it for a role without that right.
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
