-- The place where migrations are noted; the schema with it.
CREATE SCHEMA IF NOT EXISTS jobherd;
CREATE TABLE IF NOT EXISTS jobherd.migrations (
    area       text        NOT NULL,
    version    integer     NOT NULL,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (area, version)
)
