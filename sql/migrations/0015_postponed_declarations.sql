-- Schedules that a starting worker could not store, because an open transaction had locked one of them.
--
-- A worker must not wait for a user. So it leaves what its handlers declare in `declarations`, and a maintenance process
-- stores it once the transaction has ended. Without that, a release would keep the times of the one before it until
-- another worker starts. A worker that starts later withdraws it first: what it declares is newer.

-- What the supervisor declares, until it is stored. If one row of a supervisor has it, all have it.
ALTER TABLE jobherd.declarations ADD COLUMN pending jsonb;

-- Stores what was postponed, of the supervisors none of whose schedules is locked. Returns the names. What the table
-- rejects is not stored, with a warning: it must not keep the others from being stored.
CREATE FUNCTION jobherd.declare_postponed()
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    number bigint;
    names  text[];
    wanted jsonb;
    free   bigint;
    one    jsonb;
    good   jsonb;
BEGIN
    FOR number IN SELECT DISTINCT d.supervisor FROM jobherd.declarations d WHERE d.pending IS NOT NULL ORDER BY 1 LOOP
        -- A worker that withdraws it waits for this lock, or did so before: then there is nothing to store.
        SELECT array_agg(d.schedule), jsonb_agg(d.pending) INTO names, wanted
          FROM (SELECT o.schedule, o.pending FROM jobherd.declarations o
                 WHERE o.supervisor = number ORDER BY o.schedule FOR UPDATE) AS d
        HAVING bool_and(d.pending IS NOT NULL);
        CONTINUE WHEN wanted IS NULL;
        SELECT count(*) INTO free
          FROM (SELECT FROM jobherd.schedules s WHERE s.name = ANY (names) ORDER BY s.name FOR UPDATE SKIP LOCKED) AS s;
        CONTINUE WHEN free < (SELECT count(*) FROM jobherd.schedules s WHERE s.name = ANY (names));
        good := '[]';
        FOR one IN SELECT w.value FROM jsonb_array_elements(wanted) AS w LOOP
            BEGIN
                PERFORM jobherd.declare_schedules(number, jsonb_build_array(one));
                RAISE no_data_found;  -- undoes it: alone, it withdraws the other declarations
            EXCEPTION
                WHEN no_data_found THEN
                    good := good || jsonb_build_array(one);
                WHEN data_exception OR integrity_constraint_violation THEN
                    RAISE WARNING 'jobherd: schedule % is not stored: %', one ->> 'name', SQLERRM;
            END;
        END LOOP;
        CONTINUE WHEN EXISTS (SELECT FROM jobherd.declare_schedules(number, good));
        -- What is not stored stays declared. Otherwise an earlier definition of it would be retired.
        INSERT INTO jobherd.declarations (schedule, supervisor) SELECT unnest(names), number ON CONFLICT DO NOTHING;
        UPDATE jobherd.declarations d SET pending = NULL WHERE d.supervisor = number;
        RETURN QUERY SELECT g.value ->> 'name' FROM jsonb_array_elements(good) AS g;
    END LOOP;
END $$;
