-- The job that calls a webhook names the end of a job and holds nothing of its result: a worker reads that from the history when it makes the call. So
-- nothing is signed that only a payload says, and what a kind redacts is not shown with the job of its webhook.
CREATE OR REPLACE FUNCTION jobherd.call_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobherd.ready (kind, queue, priority, payload, extras)
    VALUES ('jobs:webhook', NEW.queue, NEW.priority,
            json_build_object(
                'url', (NEW.extras).webhook,
                'event', json_build_object(
                    'id', NEW.id, 'kind', NEW.kind, 'queue', NEW.queue, 'tenant', (NEW.extras).tenant, 'state', NEW.state,
                    'code', NEW.error_code, 'attempts', NEW.attempts, 'created_at', NEW.created_at, 'finished_at', NEW.finished_at)),
            jobherd.extras_of((NEW.extras).tenant, NULL, NULL, NEW.id, (NEW.extras).traceparent));
    RETURN NULL;
END $$;
