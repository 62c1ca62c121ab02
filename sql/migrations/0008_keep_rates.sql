-- What removes a pause or a concurrency limit leaves the rate limit of the same queue or kind. See also the functions
-- of 0018_turn_rules.sql, which delete the row of `gates` only if it has no other rule.

-- Trigger, before a gate is deleted: what removes a concurrency limit leaves the rate. A worker of an earlier
-- version that no longer declares a limit deletes the whole row.
CREATE FUNCTION jobherd.keep_rate()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.gates g
       SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL, max_running = NULL, limited_at = NULL,
           limited_by = NULL
     WHERE g.scope = OLD.scope AND g.name = OLD.name;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_rate BEFORE DELETE ON jobherd.gates FOR EACH ROW
    WHEN (OLD.rate IS NOT NULL AND (OLD.max_running IS NOT NULL OR OLD.paused_at IS NOT NULL))
    EXECUTE FUNCTION jobherd.keep_rate();
