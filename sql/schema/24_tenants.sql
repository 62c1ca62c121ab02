-- Tenants. A tenant's role sees, enqueues, cancels and retries the jobs of its tenants and no
-- others. Row-level security protects the tables that it writes to. The first grant_tenant enables
-- it, so an installation without tenants pays nothing. It does not apply to the owner,
-- superusers and roles with BYPASSRLS.

CREATE TABLE jobherd.tenants (
    role   name NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (role, tenant)
);
COMMENT ON TABLE jobherd.tenants IS 'Which roles may work with the jobs of which tenants.';

-- Returns the tenants of the caller: of the role that was set, else of the session's role. A member
-- of a tenant's role counts as that role. It reads what the caller may not read, so it runs as the
-- owner. Therefore it asks for the session's role and not for current_user.
CREATE FUNCTION jobherd.own_tenants()
RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(DISTINCT t.tenant), '{}')
      FROM jobherd.tenants t JOIN pg_roles r ON r.rolname = t.role
     WHERE pg_has_role(coalesce(nullif(current_setting('role', true), 'none'), session_user)::name, r.oid, 'USAGE')
$$;

-- Returns the tenant of a job for which none was named: the caller's, if row-level security applies
-- to it. A caller that has several must name one.
CREATE FUNCTION jobherd.default_tenant()
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN row_security_active('jobherd.ready'::regclass) AND cardinality(jobherd.own_tenants()) = 1
                THEN (jobherd.own_tenants())[1] END
$$;

CREATE FUNCTION jobherd.check_tenant(tenant text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF tenant !~ '^[A-Za-z0-9_][A-Za-z0-9_.:@-]*$' OR length(tenant) > 100 THEN
        RAISE EXCEPTION 'jobherd: % is not the name of a tenant', quote_literal(left(tenant, 120))
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Letters, digits and _ . : @ - , at most 100 characters.';
    END IF;
    RETURN tenant;
END $$;

-- Returns whether the caller is limited to its tenants: row-level security applies to it, and it is
-- not a worker or operator.
CREATE FUNCTION jobherd.is_confined()
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT row_security_active('jobherd.ready'::regclass)
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r
                            WHERE r.rolname IN ('jobherd_work', 'jobherd_admin') AND pg_has_role(r.oid, 'USAGE'))
$$;

-- Returns whether the session's role is limited to its tenants. For functions that run as the owner: there,
-- row_security_active() asks about the owner.
CREATE FUNCTION jobherd.is_tenant()
RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    who CONSTANT name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    RETURN (SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass)
           AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = who AND (r.rolsuper OR r.rolbypassrls))
           AND NOT EXISTS (SELECT FROM pg_roles r
                            WHERE (r.rolname IN ('jobherd_enqueue', 'jobherd_work', 'jobherd_admin')
                                   OR r.oid = (SELECT c.relowner FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass))
                              AND pg_has_role(who, r.oid, 'USAGE'));
END $$;

-- A tenant's role cannot choose the lane of another tenant, nor the name from which a retry makes the lane, nor leave
-- its jobs without one: no limit of each partition would hold for them. The end of a job counts in the flow that its
-- extras name, and its result is passed on. So only the functions of flows, which run as the owner, write these
-- attributes. For roles that work or manage, row security allows everything.
CREATE POLICY own_tenant ON jobherd.ready
    USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]))
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)
                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);
CREATE POLICY own_tenant ON jobherd.scheduled
    USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]))
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)
                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);
CREATE POLICY own_tenant ON jobherd.history
    USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]));

-- Grants a role the right to insert jobs, column by column: it gives no id, no time of creation and
-- no counts. With an id of its choice, a tenant would see the attempts of another tenant's job, and
-- could block what others are about to enqueue. The policies check the lane.
CREATE FUNCTION jobherd.let_enqueue(role name)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE format('REVOKE INSERT ON jobherd.ready, jobherd.scheduled FROM %I', let_enqueue.role);
    EXECUTE format('GRANT SELECT, INSERT (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,'
                   ' extras, lane) ON jobherd.ready, jobherd.scheduled TO %I', let_enqueue.role);
END $$;

CREATE FUNCTION jobherd.grant_tenant(role name, tenant text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    IF grant_tenant.role IS NULL OR grant_tenant.tenant IS NULL
       OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: there is no role %', coalesce(quote_ident(grant_tenant.role), 'null')
            USING ERRCODE = 'undefined_object', HINT = 'CREATE ROLE it first.';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role AND (rolsuper OR rolbypassrls)) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: role % is a superuser or has BYPASSRLS, so it would see every tenant',
            quote_ident(grant_tenant.role)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use another role.';
    END IF;
    PERFORM jobherd.check_tenant(grant_tenant.tenant);
    EXECUTE format('GRANT USAGE ON SCHEMA jobherd TO %I', grant_tenant.role);
    PERFORM jobherd.let_enqueue(grant_tenant.role);
    EXECUTE format('GRANT SELECT ON jobherd.kinds, jobherd.tenant_jobs TO %I', grant_tenant.role);
    EXECUTE format('GRANT USAGE ON SEQUENCE jobherd.job_ids TO %I', grant_tenant.role);
    IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = 'jobherd.ready'::regclass) THEN
        ALTER TABLE jobherd.ready ENABLE ROW LEVEL SECURITY;
        ALTER TABLE jobherd.scheduled ENABLE ROW LEVEL SECURITY;
        ALTER TABLE jobherd.history ENABLE ROW LEVEL SECURITY;
    END IF;
    INSERT INTO jobherd.tenants (role, tenant) VALUES (grant_tenant.role, grant_tenant.tenant) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION jobherd.grant_tenant(name, text) IS
    'Makes a role a tenant''s role. Run by the owner of the schema. Returns true if it was not one.';

CREATE FUNCTION jobherd.revoke_tenant(role name, tenant text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    found_one boolean;
BEGIN
    DELETE FROM jobherd.tenants t WHERE t.role = revoke_tenant.role AND t.tenant = revoke_tenant.tenant;
    found_one := FOUND;
    IF found_one AND NOT EXISTS (SELECT FROM jobherd.tenants t WHERE t.role = revoke_tenant.role)
       AND EXISTS (SELECT FROM pg_roles WHERE rolname = revoke_tenant.role) THEN
        EXECUTE format('REVOKE ALL ON jobherd.ready, jobherd.scheduled, jobherd.kinds, jobherd.tenant_jobs FROM %I',
                       revoke_tenant.role);
        EXECUTE format('REVOKE ALL ON SEQUENCE jobherd.job_ids FROM %I', revoke_tenant.role);
        EXECUTE format('REVOKE ALL ON SCHEMA jobherd FROM %I', revoke_tenant.role);
    END IF;
    RETURN found_one;
END $$;
COMMENT ON FUNCTION jobherd.revoke_tenant(name, text) IS
    'Revokes a role''s right to a tenant. Its privileges stay until its last tenant is revoked: without a '
    'tenant they show and allow nothing. Returns true if it had the right.';
