-- The first keeper of a new database made all partitions in one transaction: for the second that took, no settlement got through. Now it
-- says how many it makes at the most, and comes again. Made anew, it also works where migrations put it into a schema of another name.
DROP FUNCTION jobherd.keep_partitions(integer);
CREATE FUNCTION jobherd.keep_partitions(ahead integer, most integer DEFAULT NULL, OUT made integer, OUT dropped integer) LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part   text;
    day    date;
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another keeper is at it
    END IF;
    SET LOCAL lock_timeout = '2s';  -- attaching waits for readers of the default partition; they must not queue behind us
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- A settlement that has chosen the default partition for its row, and waits for the one that is being attached, would be
        -- refused in the end: the default partition may not hold such a row any more. And a reader that has looked which partitions there
        -- are, and waits for the default one, would miss what has moved out of it: a job that is over would not exist. So nobody uses the
        -- parent meanwhile.
        IF EXISTS (SELECT FROM generate_series(1, ahead) AS d
                    WHERE to_regclass('jobherd.' || parent || '_' || to_char(current_date + d, 'YYYYMMDD')) IS NULL) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT current_date + d FROM generate_series(1, ahead) AS d LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('jobherd.' || part) IS NULL THEN
                IF made >= most THEN
                    RETURN;
                END IF;
                -- Rows that fell into the default partition while nobody kept house move to where they belong: the
                -- partition could not be attached over them.
                EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
                EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *) INSERT INTO jobherd.%I SELECT * FROM moved',
                               parent || '_default', day, part);
                EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)', parent, part, day, day + 1);
                made := made + 1;
            END IF;
        END LOOP;
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = ('jobherd.' || parent)::regclass
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) <= to_char(current_date, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on <= current_date', parent || '_default');
    END LOOP;
END $$;
