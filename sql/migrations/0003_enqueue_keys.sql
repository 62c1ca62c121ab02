-- Idempotency keys of producers that enqueue through a gateway: a request that is sent again with its key
-- enqueues nothing, and gets the ids of the first one.
CREATE TABLE jobherd.enqueue_keys (
    principal  text        NOT NULL,                    -- the authenticated client: its keys are its own
    key        text        NOT NULL,
    digest     bytea       NOT NULL,                    -- of the jobs: other jobs under the same key are an error
    ids        bigint[]    NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (principal, key)
)
-- A row is written with its key and once more with its ids: room in the page keeps both in one.
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX enqueue_keys_created_at ON jobherd.enqueue_keys (created_at);
COMMENT ON TABLE jobherd.enqueue_keys IS
    'Idempotency keys of requests that enqueued jobs through a gateway. Maintenance deletes them after 24 h.';
