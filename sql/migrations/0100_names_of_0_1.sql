-- Renames to the terms of the documentation: good_until is expires_at, set_off_by is parent_id, a cap is a limit, the keeper is the
-- maintenance process. Renames columns, functions and views, then replaces the words in the text of each function.
ALTER FUNCTION jobherd.set_cap RENAME TO set_limit;
ALTER FUNCTION jobherd.lock_cap RENAME TO lock_limit;
ALTER FUNCTION jobherd.cap_from_here RENAME TO limit_from_here;
ALTER TRIGGER capped ON jobherd.gates RENAME TO limited;
ALTER TABLE jobherd.gates RENAME CONSTRAINT gates_cap_is_a_count TO gates_limit_is_a_count;
ALTER VIEW jobherd.caps RENAME TO limits;
ALTER TYPE jobherd.extras RENAME ATTRIBUTE set_off_by TO parent_id;

DO $do$
DECLARE
    names CONSTANT text[] := '{{good_until,expires_at},{set_off_by,parent_id},{capped_at,limited_at},{capped_by,limited_by}}';
    words CONSTANT text[] := names || '{{set_cap,set_limit},{lock_cap,lock_limit},{cap_from_here,limit_from_here},{capped,limited_queues},
                                        {cap,limit},{caps,limits},{Cap,Limit},{another keeper,another maintenance process},{keeper,maintenance}}';
    ours  CONSTANT oid := (SELECT relnamespace FROM pg_class WHERE oid = 'jobherd.gates'::regclass);
    listed text;
    one   record;
    body  text;
    pair  text[];
BEGIN
    FOREACH pair SLICE 1 IN ARRAY names LOOP
        FOR one IN SELECT c.oid::regclass AS name FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                    WHERE c.relnamespace = ours AND c.relkind IN ('r', 'p', 'v') AND a.attname = pair[1] AND a.attinhcount = 0
        LOOP
            EXECUTE format('ALTER TABLE %s RENAME COLUMN %I TO %I', one.name, pair[1], pair[2]);
        END LOOP;
    END LOOP;
    FOR one IN SELECT c.oid::regclass AS name, replace(replace(c.relname, '_set_off_by', '_parent_id'), '_set_off', '_parent') AS called
                 FROM pg_class c WHERE c.relnamespace = ours AND c.relkind IN ('i', 'I') AND c.relname LIKE '%\_set\_off%'
    LOOP
        EXECUTE format('ALTER INDEX %s RENAME TO %I', one.name, one.called);
    END LOOP;
    listed := pg_get_viewdef('jobherd.limits'::regclass);  -- not in the query of the loop, which drops the view and goes on
    FOR one IN SELECT p.oid, p.oid::regprocedure AS name, pg_get_functiondef(p.oid) AS definition,
                      CASE WHEN p.proname = 'count_running' THEN listed END AS view
                 FROM pg_proc p
                WHERE p.pronamespace = ours AND p.prokind IN ('f', 'p')
    LOOP
        body := one.definition;
        FOREACH pair SLICE 1 IN ARRAY words LOOP
            body := regexp_replace(body, '\m' || pair[1] || '\M', pair[2], 'g');
        END LOOP;
        CONTINUE WHEN body = one.definition;
        IF one.view IS NOT NULL THEN DROP VIEW jobherd.limits; END IF;
        -- CREATE OR REPLACE does not rename a parameter.
        IF one.name::text ~ '(count_running|extras_of)\(' THEN EXECUTE format('DROP FUNCTION %s', one.name); END IF;
        EXECUTE body;
        IF one.view IS NOT NULL THEN EXECUTE 'CREATE VIEW jobherd.limits AS ' || one.view; END IF;
    END LOOP;
    -- A view keeps the names that it gives to columns in its subqueries.
    EXECUTE 'CREATE OR REPLACE VIEW jobherd.jobs AS ' || regexp_replace(pg_get_viewdef('jobherd.jobs'::regclass), '\mgood_until\M', 'expires_at', 'g');
END $do$;
