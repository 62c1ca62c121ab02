-- The partitions that today's and tomorrow's outcomes need are made first: those of the days until which the kinds
-- keep their jobs. On a new database the others can wait until no job runs: 64 of them took a second of processor
-- time, and no worker could record outcomes meanwhile.

-- Returns for how many days jobs are kept: as the kinds say, and by default.
CREATE FUNCTION jobherd.kept_days()
RETURNS SETOF integer
LANGUAGE sql STABLE
AS $$
    SELECT 7 UNION SELECT 30 UNION SELECT k.keep_completed FROM jobherd.kinds k UNION SELECT k.keep_failed FROM jobherd.kinds k
$$;

-- Creates the partitions from today to `ahead` days from now, at most `most`, and drops those whose day has passed
-- once none is missing. See schema/02_history.sql, whose function this replaces: only the order is new.
CREATE OR REPLACE FUNCTION jobherd.keep_partitions(
    ahead integer, most integer DEFAULT NULL, OUT made integer, OUT dropped integer
)
RETURNS record
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent  text;
    part    text;
    day     date;
    today   CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    missing integer;
    urgent  CONSTANT boolean := EXISTS (SELECT FROM unnest('{history,attempts}'::text[]) AS t (name)
                                        CROSS JOIN generate_series(1, ahead - 1) AS d
                                         WHERE to_regclass('jobherd.' || t.name || '_'
                                                           || to_char(today + d, 'YYYYMMDD')) IS NULL)
                             OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                                         WHERE i.inhparent IN ('jobherd.history'::regclass, 'jobherd.attempts'::regclass)
                                           AND c.relname ~ '_[0-9]{8}$'
                                           AND right(c.relname, 8) < to_char(today - 1, 'YYYYMMDD'));
    -- The first `most` that are missing: their tables and days.
    parents text[];
    days    date[];
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another maintenance process does it
    END IF;
    -- Attaching and dropping wait for each reader of the history, and settlements wait behind this session. A
    -- reader, such as a backup, may last for hours. So this waits only briefly, and is tried again later, as long
    -- as only the last day is missing, or the partition to drop was needed until yesterday.
    PERFORM set_config('lock_timeout', CASE WHEN urgent THEN '2s' ELSE '50ms' END, true);
    SELECT count(*), (array_agg(m.parent ORDER BY m.place))[:coalesce(most, count(*)::integer)],
           (array_agg(m.day ORDER BY m.place))[:coalesce(most, count(*)::integer)]
      INTO missing, parents, days
      FROM (SELECT t.name AS parent, today + d AS day,
                   row_number() OVER (ORDER BY d NOT IN (SELECT kept + later FROM jobherd.kept_days() AS kept
                                                              CROSS JOIN generate_series(0, 1) AS later),
                                               t.name DESC, d) AS place
              FROM unnest('{history,attempts}'::text[]) AS t (name) CROSS JOIN generate_series(1, ahead) AS d
             WHERE to_regclass('jobherd.' || t.name || '_' || to_char(today + d, 'YYYYMMDD')) IS NULL) AS m;
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- Race: a settlement that has chosen the default partition, and waits for the new one, would be rejected:
        -- the default partition must not hold its row any more. A reader that has listed the partitions, and waits
        -- for the default one, would miss the rows that have moved: a finished job would not exist. So the parent
        -- is locked.
        IF parent = ANY (parents) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT p.day FROM unnest(parents, days) AS p (name, day) WHERE p.name = parent LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            -- Rows that went to the default partition move first: otherwise the new one cannot be attached.
            EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                           part, parent);
            EXECUTE format('ALTER TABLE jobherd.%I REPLICA IDENTITY FULL', part);
            EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *)'
                           ' INSERT INTO jobherd.%I SELECT * FROM moved', parent || '_default', day, part);
            EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)',
                           parent, part, day, day + 1);
            PERFORM jobherd.leave_first_range(('jobherd.' || part)::regclass);
            made := made + 1;
        END LOOP;
    END LOOP;
    IF made < missing THEN
        RETURN;
    END IF;
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
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
END $$;
