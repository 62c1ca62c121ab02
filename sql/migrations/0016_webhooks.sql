-- Whoever is to be told of a job's end is told by a job of its own, which is put into the queue by the transaction that ends the first:
-- whatever path that takes, it writes the past. It waits where its job did, for whoever serves that queue also tells of it.
CREATE FUNCTION jobherd.call_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobherd.ready (kind, queue, priority, payload, extras)
    VALUES ('jobs:webhook', NEW.queue, NEW.priority,
            json_build_object(
                'url', (NEW.extras).webhook,
                'event', json_build_object(
                    'id', NEW.id, 'kind', NEW.kind, 'queue', NEW.queue, 'tenant', (NEW.extras).tenant, 'state', NEW.state,
                    'code', NEW.error_code, 'attempts', NEW.attempts, 'created_at', NEW.created_at, 'finished_at', NEW.finished_at,
                    'result', CASE WHEN octet_length(NEW.result::text) <= 10000 THEN NEW.result END,
                    'result_omitted', coalesce(octet_length(NEW.result::text) > 10000, false))),
            CASE WHEN (NEW.extras).tenant IS NOT NULL THEN ((NEW.extras).tenant, NULL, NULL)::jobherd.extras END);
    RETURN NULL;
END $$;

CREATE TRIGGER webhook AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).webhook IS NOT NULL)
    EXECUTE FUNCTION jobherd.call_webhook();
