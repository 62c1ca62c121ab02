-- Send a signal to a topic. Returns its id.
SELECT jobherd.signal(%(topic)s::text, %(payload)s::jsonb) AS id
