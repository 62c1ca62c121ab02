-- What raw SQL may put into the live tables: a count that has no room for one more was refused by the claim itself, and ended every worker that came
-- to that job, one after the other; a job whose timeout was no number never timed out. Rows that are there already are not read for it.
ALTER TABLE jobherd.ready ADD CONSTRAINT ready_counts_can_grow
    CHECK (attempts < 32767 AND crashes < 32767 AND (timeout IS NULL OR timeout < 'infinity')) NOT VALID;
ALTER TABLE jobherd.scheduled ADD CONSTRAINT scheduled_counts_can_grow
    CHECK (attempts < 32767 AND crashes < 32767 AND (timeout IS NULL OR timeout < 'infinity')) NOT VALID;
