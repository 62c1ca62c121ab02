-- Unique jobs by SQL: the options of jobherd.enqueue that Python has.

-- Returns name and path of each field of a payload: `order_id`, or a path such as `$.doc.items[0]`.
CREATE FUNCTION jobherd.unique_fields(fields jsonb)
RETURNS TABLE (name text, path text)
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    FOR name IN SELECT f FROM jsonb_array_elements_text(fields) AS f LOOP
        IF name ~ '^[^.$\[\]]+$' THEN
            path := ARRAY[name]::text;
        ELSIF name ~ '^\$(\.[^.$\[\]]+|\[[0-9]{1,9}\])+$' THEN
            path := (SELECT array_agg(coalesce(m[1], m[2])) FROM regexp_matches(name, '\.([^.\[]+)|\[([0-9]+)\]', 'g') AS m)::text;
        ELSE
            RAISE EXCEPTION 'must name fields of the payload, like order_id or $.doc.id';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

COMMENT ON FUNCTION jobherd.enqueue(text, jsonb, jsonb) IS
    'Enqueues one job in the caller''s transaction, and returns its id. SELECT '
    'jobherd.enqueue(''mail:receipt'', ''{"order_id": 7}'', ''{"delay": "10 minutes", "priority": -5}''); '
    'Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or '
    'an interval), expires_at, tenant, webhook, parent_id, traceparent; unique (true, or fields of the payload), '
    'unique_key, unique_for, debounce, max_wait, throttle. Returns the id of the job that holds the key of a unique job.';
