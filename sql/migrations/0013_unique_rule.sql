-- Unique jobs by SQL: during, conflict, queue, collect and edge, as in Python.

-- Returns the rule of enqueue_unique and enqueue_keyed for the options of a job. `delay`: seconds until a new
-- job is due.
CREATE FUNCTION jobherd.unique_rule(options jsonb)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    given    CONSTANT jsonb := CASE WHEN jsonb_typeof(options -> 'unique') = 'object' THEN options -> 'unique' ELSE '{}' END;
    fields   CONSTANT jsonb := CASE WHEN given <> '{}' THEN coalesce(given -> 'by', 'true')
                                    WHEN options ? 'unique' AND options -> 'unique' <> '{}' THEN options -> 'unique' ELSE 'true' END;
    named    CONSTANT jsonb := CASE jsonb_typeof(fields) WHEN 'array' THEN fields WHEN 'string' THEN jsonb_build_array(fields) END;
    during   CONSTANT text := coalesce(given ->> 'during', 'live');
    conflict CONSTANT text := coalesce(given ->> 'conflict', 'ignore');
    changes  CONSTANT boolean := conflict IN ('replace', 'collect');
    listed   CONSTANT text := given ->> 'collect';
    word     CONSTANT text := options ->> 'unique_key';
    edge     CONSTANT text := options ->> 'edge';
    delayed  CONSTANT boolean := coalesce(edge = 'trailing', false);
    pause    CONSTANT double precision := jobherd.seconds_of(options ->> 'debounce');
    patience CONSTANT double precision := jobherd.seconds_of(options ->> 'max_wait');
    lasts    CONSTANT double precision := jobherd.seconds_of(options ->> 'unique_for');
    throttle CONSTANT double precision := jobherd.seconds_of(options ->> 'throttle');
    keyed    CONSTANT boolean := pause IS NOT NULL OR delayed OR changes;
BEGIN
    IF given - '{by,queue,during,conflict,collect}'::text[] <> '{}' THEN
        RAISE EXCEPTION 'takes by, queue, during, conflict and collect';
    ELSIF named IS NULL AND fields NOT IN ('true', 'false') THEN
        RAISE EXCEPTION 'must be true, false, fields of the payload like ["order_id"], or an object like {"by": ["order_id"]}';
    ELSIF jsonb_array_length(named) NOT BETWEEN 1 AND 20 THEN
        RAISE EXCEPTION 'must name 1 to 20 fields of the payload';
    ELSIF fields = 'false' THEN
        RETURN NULL;
    ELSIF during <> ALL ('{live,waiting,never}') THEN
        RAISE EXCEPTION 'during must be live, waiting or never';
    ELSIF conflict <> ALL ('{ignore,raise,replace,collect}') THEN
        RAISE EXCEPTION 'conflict must be ignore, raise, replace or collect';
    ELSIF edge <> ALL ('{leading,trailing}') THEN
        RAISE EXCEPTION 'edge must be leading or trailing';
    ELSIF jsonb_typeof(given -> 'queue') <> 'boolean' THEN
        RAISE EXCEPTION 'queue must be true or false: whether each queue has its own keys';
    ELSIF (conflict = 'collect') <> (listed IS NOT NULL) THEN
        RAISE EXCEPTION 'the conflict collect and "collect", the name of the list, belong together';
    ELSIF listed !~ '^[^.$\[\]]+$' OR named ? listed THEN
        RAISE EXCEPTION 'collect must name a field of the payload that is not in by';
    ELSIF conflict = 'collect' AND named IS NULL AND word IS NULL THEN
        RAISE EXCEPTION 'the conflict collect requires by or unique_key, without the list';
    ELSIF length(word) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'unique_key must have 1 to 1,000 characters';
    ELSIF least(pause, patience, lasts, throttle) <= 0 THEN
        RAISE EXCEPTION 'durations must be more than 0 seconds';
    ELSIF changes AND during = 'never' THEN
        RAISE EXCEPTION 'the conflict % changes a job that waits, so it excludes during never', conflict;
    ELSIF during = 'never' AND lasts IS NULL AND throttle IS NULL THEN
        RAISE EXCEPTION 'during never requires unique_for, the time for which a job holds its key';
    ELSIF throttle IS NOT NULL AND (pause IS NOT NULL OR lasts IS NOT NULL) THEN
        RAISE EXCEPTION 'throttle excludes debounce and unique_for';
    ELSIF edge IS NOT NULL AND throttle IS NULL THEN
        RAISE EXCEPTION 'edge requires throttle';
    ELSIF throttle IS NOT NULL AND NOT delayed AND changes THEN
        RAISE EXCEPTION 'throttle with the conflict % requires edge trailing', conflict;
    ELSIF patience IS NOT NULL AND (pause IS NULL OR patience < pause) THEN
        RAISE EXCEPTION 'max_wait requires debounce, and must not be shorter';
    ELSIF keyed AND conflict = 'raise' THEN
        RAISE EXCEPTION 'debounce and edge trailing exclude the conflict raise';
    ELSIF (pause IS NOT NULL OR delayed) AND options ?| '{delay,run_at}' THEN
        RAISE EXCEPTION '% excludes delay and run_at', CASE WHEN delayed THEN 'edge trailing' ELSE 'debounce' END;
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'by', CASE WHEN word IS NULL THEN named END, 'key', word, 'queue', given -> 'queue',
        'during', CASE WHEN keyed THEN 'waiting' WHEN throttle IS NOT NULL THEN 'never' ELSE during END,
        'for', CASE WHEN keyed THEN lasts ELSE coalesce(throttle, lasts) END,
        'debounce', pause, 'max_wait', coalesce(patience, 10 * pause), 'keep', delayed,
        'delay', coalesce(pause, CASE WHEN delayed THEN throttle END),
        'conflict', CASE WHEN listed IS NOT NULL THEN 'collect' WHEN keyed THEN 'replace' ELSE conflict END,
        'collect', listed));
END $$;
