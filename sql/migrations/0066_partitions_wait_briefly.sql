-- keep_partitions waits for a reader of the past for 50 ms only, as long as a day is in hand: each settlement waits behind it. Before, they waited
-- for 2 s, every five minutes, for as long as a backup or a report ran over midnight UTC.
CREATE OR REPLACE FUNCTION jobherd.keep_partitions(ahead integer, most integer DEFAULT NULL::integer, OUT made integer, OUT dropped integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    parent text;
    part   text;
    day    date;
    today  CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    urgent CONSTANT boolean := EXISTS (SELECT FROM unnest('{history,attempts}'::text[]) AS t (name) CROSS JOIN generate_series(1, ahead - 1) AS d
                                        WHERE to_regclass('jobherd.' || t.name || '_' || to_char(today + d, 'YYYYMMDD')) IS NULL)
                            OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                                        WHERE i.inhparent IN ('jobherd.history'::regclass, 'jobherd.attempts'::regclass)
                                          AND c.relname ~ '_[0-9]{8}$' AND right(c.relname, 8) < to_char(today - 1, 'YYYYMMDD'));
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another keeper is at it
    END IF;
    -- Attaching and dropping wait for each reader of the past, and settlements wait behind us meanwhile. A reader may last for hours, as a
    -- backup does. So while only the last day is missing, or what is to be dropped was needed until yesterday, we wait briefly and come again.
    PERFORM set_config('lock_timeout', CASE WHEN urgent THEN '2s' ELSE '50ms' END, true);
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- A settlement that has chosen the default partition for its row, and waits for the one that is being attached, would be
        -- refused in the end: the default partition may not hold such a row any more. And a reader that has looked which partitions there
        -- are, and waits for the default one, would miss what has moved out of it: a job that is over would not exist. So nobody uses the
        -- parent meanwhile.
        IF EXISTS (SELECT FROM generate_series(1, ahead) AS d
                    WHERE to_regclass('jobherd.' || parent || '_' || to_char(today + d, 'YYYYMMDD')) IS NULL) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT today + d FROM generate_series(1, ahead) AS d LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('jobherd.' || part) IS NULL THEN
                IF made >= most THEN
                    RETURN;
                END IF;
                -- Rows that fell into the default partition while nobody kept house move to where they belong: the
                -- partition could not be attached over them.
                EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
                EXECUTE format('ALTER TABLE jobherd.%I REPLICA IDENTITY FULL', part);
                EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *) INSERT INTO jobherd.%I SELECT * FROM moved',
                               parent || '_default', day, part);
                EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)', parent, part, day, day + 1);
                PERFORM jobherd.leave_first_range(('jobherd.' || part)::regclass);
                made := made + 1;
            END IF;
        END LOOP;
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = ('jobherd.' || parent)::regclass
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) < to_char(today, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on < %L', parent || '_default', today);
    END LOOP;
END $_$;
