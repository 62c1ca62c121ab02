-- Begin a job's transaction. Sent together with lock_claim, so that it costs no round trip of its own.
BEGIN
