-- Further renames to the terms of the documentation: an order is a fleet command, the page is the dashboard.
ALTER FUNCTION jobherd.order RENAME TO send_fleet_command;
ALTER FUNCTION jobherd.end_page_sessions RENAME TO end_dashboard_sessions;
ALTER TABLE jobherd.orders RENAME TO fleet_commands;
ALTER TABLE jobherd.page_secrets RENAME TO dashboard_secrets;
ALTER TABLE jobherd.page_logouts RENAME TO dashboard_logouts;

DO $do$
DECLARE
    ours  CONSTANT oid := (SELECT relnamespace FROM pg_class WHERE oid = 'jobherd.gates'::regclass);
    words CONSTANT text[] := '{{[.]orders,.fleet_commands},{[.]order,.send_fleet_command},{100 orders,100 fleet commands},{''order'',''command''},
                               {end_page_sessions,end_dashboard_sessions},{page_secrets,dashboard_secrets},{page_logouts,dashboard_logouts}}';
    one   record;
    body  text;
    pair  text[];
BEGIN
    FOR one IN SELECT conrelid::regclass AS tab, conname AS was, regexp_replace(regexp_replace(conname, '^orders_', 'fleet_commands_'), '^page_', 'dashboard_') AS called
                 FROM pg_constraint WHERE connamespace = ours AND conname ~ '^(orders|page)_'
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', one.tab, one.was, one.called);
    END LOOP;
    FOR one IN SELECT oid::regclass AS name, relkind, regexp_replace(regexp_replace(relname, '^orders_', 'fleet_commands_'), '^page_', 'dashboard_') AS called
                 FROM pg_class WHERE relnamespace = ours AND relkind IN ('i', 'S') AND relname ~ '^(orders|page)_'
    LOOP
        EXECUTE format('ALTER %s %s RENAME TO %I', CASE one.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'INDEX' END, one.name, one.called);
    END LOOP;
    FOR one IN SELECT pg_get_functiondef(p.oid) AS definition FROM pg_proc p WHERE p.pronamespace = ours AND p.prokind = 'f' LOOP
        body := replace(one.definition, 'LIKE ''page:%''', 'LIKE ''dashboard:%''');
        FOREACH pair SLICE 1 IN ARRAY words LOOP
            body := regexp_replace(body, pair[1] || CASE WHEN pair[1] ~ '\w$' THEN '\M' ELSE '' END, pair[2], 'g');
        END LOOP;
        IF body <> one.definition THEN EXECUTE body; END IF;
    END LOOP;
END $do$;
