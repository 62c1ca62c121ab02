-- Every table says by what a row of it is known to a replica. In a database with a publication for all tables, which a move to a newer server by logical
-- replication begins with, PostgreSQL refuses each DELETE from a table without a primary key or such an identity: no job could be claimed, nor retried once
-- it was over, and nothing of the past dropped. It costs nothing where nothing is replicated. The past has no unique index, so its rows are known by all
-- that they are; of a partitioned table each partition has its own identity, and the whole one for who publishes by it.
ALTER TABLE jobherd.history REPLICA IDENTITY FULL;
ALTER TABLE jobherd.attempts REPLICA IDENTITY FULL;
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent IN ('jobherd.history'::regclass, 'jobherd.attempts'::regclass) ORDER BY 1 LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', part);
    END LOOP;
END $$;
ALTER TABLE jobherd.ready REPLICA IDENTITY USING INDEX ready_by_id;
ALTER TABLE jobherd.parked REPLICA IDENTITY USING INDEX parked_by_id;

CREATE OR REPLACE FUNCTION jobherd.keep_partitions(ahead integer, most integer DEFAULT NULL::integer, OUT made integer, OUT dropped integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    parent text;
    part   text;
    day    date;
    today  CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
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
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) <= to_char(today, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on <= %L', parent || '_default', today);
    END LOOP;
END $_$;
