-- A child has a second session, for the transactions of its jobs: whoever takes back what the child held must know it, and end it first.
ALTER TABLE jobherd.children
    ADD COLUMN transaction_pid integer,
    ADD COLUMN transaction_started timestamptz;

-- What the handler printed and logged in an attempt, if it did. Beside history and attempts and not in them: most jobs say nothing, and the
-- statement that settles those must not even know of it.
CREATE TABLE jobherd.logs (
    job     bigint      NOT NULL,
    token   bigint      NOT NULL,                   -- of the attempt's claim, as in history and attempts
    attempt smallint    NOT NULL,
    at      timestamptz NOT NULL,                   -- when the attempt ended
    drop_on date        NOT NULL,                   -- the day from which the row may go
    output  text        NOT NULL,                   -- the last of it
    entries jsonb,                                  -- what was said by job.log(key, ...), in order
    PRIMARY KEY (job, token)
);
CREATE INDEX logs_by_day ON jobherd.logs (drop_on);
