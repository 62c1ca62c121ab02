-- Records of an application's own table whose process has died: written by the parent, which knows what it died of and loads no handlers,
-- and taken by a resetter, which knows the table.
CREATE TABLE jobherd.table_ends (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind    text        NOT NULL,                   -- the name of the store
    record  bigint      NOT NULL,
    token   bigint      NOT NULL,                   -- of the claim: the record's started_at, in microseconds
    outcome text        NOT NULL,
    crashed boolean     NOT NULL,
    delay   double precision NOT NULL,
    error   text,
    log     text,                                   -- what it had printed and logged, as JSON: output, entries
    ran     double precision,                       -- seconds
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
