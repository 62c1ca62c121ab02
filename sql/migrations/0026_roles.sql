-- Roles that may do one thing each (queries/grant_roles.sql says what), and what they need of the functions.

-- Whether the caller is kept to its tenants: row security holds for it, and it is none of those who look after all jobs.
CREATE FUNCTION jobherd.is_confined() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT row_security_active('jobherd.ready'::regclass)
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r
                            WHERE r.rolname IN ('jobherd_work', 'jobherd_admin') AND pg_has_role(r.oid, 'USAGE'))
$$;

-- These two asked for row security alone, and would have taken an operator for a tenant who has no jobs. The rest of them stays as it is.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOREACH one IN ARRAY ARRAY['jobherd.cancel_as(bigint, text, text)', 'jobherd.retry_as(bigint, text, text)']::regprocedure[] LOOP
        EXECUTE replace(pg_get_functiondef(one), 'row_security_active(''jobherd.ready''::regclass)', 'jobherd.is_confined()');
    END LOOP;
END $$;

-- What only the owner of a table can do, a keeper asks of these: as the owner they do this and nothing else.
ALTER FUNCTION jobherd.keep_partitions(integer, integer) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobherd.enable_webhooks() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
