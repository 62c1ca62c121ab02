-- The server keeps notifications for whoever listens and sits in a transaction, stranger or not, in one queue for all databases. When that is
-- full, whoever notifies cannot commit: no outcome for which somebody waits, no retry, nothing that is given back, and no beat, so that every lease
-- lapsed. No word is worth that: whoever is told of something also looks by itself now and then. So near the end of that queue nothing is said.

-- Notify, if there is room; returns whether. One expression, so that it costs its caller no call.
CREATE FUNCTION jobherd.notify(channel text, word text) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN pg_notification_queue_usage() < 0.9 THEN pg_notify(channel, word) IS NOT NULL ELSE false END
$$;

-- Whatever notified before asks it. The rest of them stays as it is.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOREACH one IN ARRAY ARRAY['jobherd.wake_sleepers()', 'jobherd.tell_sleepers(text)', 'jobherd.tell_waiters(text[])', 'jobherd.wake_scheduled()',
                               'jobherd.wake_paused()', 'jobherd.cancel_as(bigint, text, text)',
                               'jobherd.order(bigint, text, jsonb, text, text)']::regprocedure[] LOOP
        EXECUTE replace(pg_get_functiondef(one), 'pg_notify(', 'jobherd.notify(');
    END LOOP;
END $$;
