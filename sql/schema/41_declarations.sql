-- Schedules that handlers declare: what a starting worker stores, and what becomes of those that no handler declares.
--
-- A worker must not wait for a user whose open transaction has locked one of the schedules. So it leaves what its handlers
-- declare in `declarations`, and a maintenance process stores it once the transaction has ended. Without that, a release
-- would keep the times of the one before it until another worker starts. A worker that starts later withdraws it
-- first: what it declares is newer.

-- Returns whether a schedule's instants would differ. If they do not, an edit leaves next_at alone.
CREATE FUNCTION jobherd.is_other_timing(
    schedule jobherd.schedules, cron text, every double precision, tz text, options jsonb
)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (schedule.cron, schedule.every, schedule.tz, schedule.options ->> 'starts_at', schedule.options ->> 'ends_at')
           IS DISTINCT FROM (cron, every, tz, options ->> 'starts_at', options ->> 'ends_at')
$$;

-- Stores what the handlers of a supervisor declare: {"name", "kind", "cron", "every", "tz", "payload", "options"} each.
-- The supervisor that began latest decides, so a respawned worker of an earlier release reverts nothing, and
-- a rollback does. A text that a user has edited stays. Equal rows are only read, and no lock is waited for
-- longer than 2 s: a worker that starts must not wait for a user's open transaction. Returns the name that
-- could not be stored for that reason.
CREATE FUNCTION jobherd.declare_schedules(supervisor bigint, schedules jsonb)
RETURNS SETOF text
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    began CONSTANT timestamptz := (SELECT s.started_at FROM jobherd.supervisors s WHERE s.id = declare_schedules.supervisor);
    one   record;
    again boolean;
BEGIN
    DELETE FROM jobherd.declarations d
     WHERE d.supervisor = declare_schedules.supervisor
       AND NOT EXISTS (SELECT FROM jsonb_array_elements(schedules) AS s WHERE s.value ->> 'name' = d.schedule);
    INSERT INTO jobherd.declarations (schedule, supervisor)
    SELECT s.value ->> 'name', declare_schedules.supervisor
      FROM jsonb_array_elements(schedules) AS s
     WHERE began IS NOT NULL
       AND NOT EXISTS (SELECT FROM jobherd.declarations d
                        WHERE d.schedule = s.value ->> 'name' AND d.supervisor = declare_schedules.supervisor)
     ORDER BY 1
    ON CONFLICT DO NOTHING;
    FOR one IN
        SELECT d.value AS declared, t.*
          FROM jsonb_array_elements(schedules) AS d
         CROSS JOIN LATERAL jsonb_to_record(d.value) AS t (name text, kind text, cron text, every double precision,
                                                           tz text, payload jsonb, options jsonb)
         WHERE began IS NOT NULL
           AND NOT EXISTS (SELECT FROM jobherd.schedules s
                            WHERE s.name = t.name AND (s.declared_at > began
                                  OR s.declared = d.value AND s.undeclared_at IS NULL AND s.retired_at IS NULL))
         ORDER BY t.name
    LOOP
        BEGIN
            INSERT INTO jobherd.schedules (name, kind, cron, every, tz, payload, options, declared, declared_at)
            VALUES (one.name, one.kind, one.cron, one.every, one.tz, one.payload, one.options, one.declared, began)
            ON CONFLICT (name) DO NOTHING;
            CONTINUE WHEN FOUND;
            PERFORM FROM jobherd.schedules s WHERE s.name = one.name FOR UPDATE;
            -- An instant that is due and that no maintenance process has met yet.
            INSERT INTO jobherd.ticks (schedule, at, decided, by)
            SELECT s.name, s.next_at, 'edited', 'deploy'
              FROM jobherd.schedules s
             WHERE s.name = one.name AND s.edited_by IS NULL AND s.next_at <= clock_timestamp() AND s.plan_from IS NULL
               AND s.paused_at IS NULL AND s.retired_at IS NULL AND (s.declared_at <= began) IS NOT FALSE
               AND jobherd.is_other_timing(s, one.cron, one.every, one.tz, one.options)
            ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
            UPDATE jobherd.schedules s
               SET kind = n.kind, cron = n.cron, every = n.every, tz = n.tz, payload = n.payload, options = n.options,
                   declared = one.declared, declared_at = began, undeclared_at = NULL, retired_at = NULL,
                   revision = s.revision + 1,
                   plan_from = CASE WHEN n.moved OR s.retired_at IS NOT NULL
                                    THEN greatest(s.last_at, clock_timestamp()) ELSE s.plan_from END,
                   gap_from = CASE WHEN s.retired_at IS NOT NULL AND s.next_at <= clock_timestamp()
                                   THEN s.next_at ELSE s.gap_from END,
                   gap_why = CASE WHEN s.retired_at IS NOT NULL AND s.next_at <= clock_timestamp()
                                  THEN 'retired' ELSE s.gap_why END
              FROM (SELECT CASE WHEN o.edited_by IS NULL THEN one.kind ELSE o.kind END AS kind,
                           CASE WHEN o.edited_by IS NULL THEN one.cron ELSE o.cron END AS cron,
                           CASE WHEN o.edited_by IS NULL THEN one.every ELSE o.every END AS every,
                           CASE WHEN o.edited_by IS NULL THEN one.tz ELSE o.tz END AS tz,
                           CASE WHEN o.edited_by IS NULL THEN one.payload ELSE o.payload END AS payload,
                           CASE WHEN o.edited_by IS NULL THEN one.options ELSE o.options END AS options,
                           o.edited_by IS NULL AND jobherd.is_other_timing(o, one.cron, one.every, one.tz, one.options)
                           AS moved
                      FROM jobherd.schedules o WHERE o.name = one.name) AS n
             WHERE s.name = one.name AND (s.declared_at <= began) IS NOT FALSE;
        EXCEPTION
            WHEN lock_not_available THEN
                RETURN NEXT one.name;
                EXIT;
        END;
    END LOOP;
END $$;

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

-- Retires the schedules that no live supervisor has declared for 10 minutes, and deletes those that were retired 30
-- days ago. One that a user made or edited stays.
CREATE FUNCTION jobherd.retire_schedules()
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM jobherd.declarations d
     WHERE NOT EXISTS (SELECT FROM jobherd.supervisors s
                        WHERE s.id = d.supervisor AND s.lease_until > clock_timestamp() - interval '10 min');
    UPDATE jobherd.schedules s SET undeclared_at = clock_timestamp()
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.declared IS NOT NULL AND o.edited_by IS NULL AND o.undeclared_at IS NULL
               AND NOT EXISTS (SELECT FROM jobherd.declarations d JOIN jobherd.supervisors u ON u.id = d.supervisor
                                WHERE d.schedule = o.name AND u.lease_until > clock_timestamp())
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS gone
     WHERE s.name = gone.name;
    UPDATE jobherd.schedules s SET undeclared_at = NULL
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.undeclared_at IS NOT NULL AND o.retired_at IS NULL
               AND EXISTS (SELECT FROM jobherd.declarations d JOIN jobherd.supervisors u ON u.id = d.supervisor
                            WHERE d.schedule = o.name AND u.lease_until > clock_timestamp())
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS back
     WHERE s.name = back.name;
    DELETE FROM jobherd.schedules s
     WHERE s.name IN (SELECT o.name FROM jobherd.schedules o
                       WHERE o.retired_at < clock_timestamp() - interval '30 days' FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    UPDATE jobherd.schedules s SET retired_at = clock_timestamp(), held = NULL, revision = s.revision + 1
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.undeclared_at < clock_timestamp() - interval '10 min' AND o.retired_at IS NULL
               AND o.declared IS NOT NULL AND o.edited_by IS NULL
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS old
     WHERE s.name = old.name
    RETURNING s.name;
END $$;
