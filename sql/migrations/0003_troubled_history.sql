-- What people look for in the past is what went wrong. Without this index a page of failed jobs walks over millions of completed ones;
-- completed jobs, which are nearly all of them, pay nothing for it.
CREATE INDEX history_troubled ON jobherd.history (id) WHERE state <> 'completed';
