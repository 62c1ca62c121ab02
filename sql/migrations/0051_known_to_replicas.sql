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

-- And so has each partition that is made from now on. The rest of the function stays as it is.
DO $do$
BEGIN
    EXECUTE replace(pg_get_functiondef('jobherd.keep_partitions(integer, integer)'::regprocedure),
        'INCLUDING CONSTRAINTS)'', part, parent);', $new$INCLUDING CONSTRAINTS)', part, parent);
                EXECUTE format('ALTER TABLE jobherd.%I REPLICA IDENTITY FULL', part);$new$);
END $do$;
