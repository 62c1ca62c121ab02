-- A child has a second session, for the transactions of its jobs: whoever takes back what the child held must know it, and end it first.
ALTER TABLE jobherd.children
    ADD COLUMN transaction_pid integer,
    ADD COLUMN transaction_started timestamptz;
