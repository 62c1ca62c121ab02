-- enable_webhooks() locks the table history against writes, and settlements queue behind it while it waits for that lock. It waited for 2 s, again
-- and again, while a caller of cancel(), retry() or delete() kept its transaction open: the first supervisor with a webhook secret stopped the fleet.
-- Now it waits for 50 ms, and the maintenance process tries again later.
CREATE OR REPLACE FUNCTION jobherd.enable_webhooks() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;
    END IF;
    SET LOCAL lock_timeout = '50ms';  -- settlements queue behind us
    LOCK TABLE jobherd.history IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;  -- another keeper was quicker
    END IF;
    CREATE TRIGGER webhook AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).webhook IS NOT NULL)
        EXECUTE FUNCTION jobherd.call_webhook();
    RETURN true;
END $$;
