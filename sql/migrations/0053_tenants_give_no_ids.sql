-- A tenant's role puts jobs in without a say in their ids. One that put in a job of its own under the id of another tenant's was shown, in tenant_jobs, what the other's attempts
-- had died of, traceback and all; jobherd.cancel and jobherd.retry took the other's job for its own; and what others were about to enqueue under ids that it had taken was refused.
CREATE FUNCTION jobherd.let_enqueue(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('REVOKE INSERT ON jobherd.ready, jobherd.scheduled FROM %I', let_enqueue.role);
    EXECUTE format('GRANT SELECT, INSERT (created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras)'
                   ' ON jobherd.ready, jobherd.scheduled TO %I', let_enqueue.role);
END $$;

CREATE OR REPLACE FUNCTION jobherd.grant_tenant(role name, tenant text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF grant_tenant.role IS NULL OR grant_tenant.tenant IS NULL OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: there is no role %', coalesce(quote_ident(grant_tenant.role), 'null')
            USING ERRCODE = 'undefined_object', HINT = 'CREATE ROLE it first.';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role AND (rolsuper OR rolbypassrls)) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: role % is a superuser or has BYPASSRLS, so nothing can keep it to its tenant', quote_ident(grant_tenant.role)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Take another role.';
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

SELECT jobherd.let_enqueue(role) FROM (SELECT DISTINCT t.role FROM jobherd.tenants t JOIN pg_roles r ON r.rolname = t.role) AS known;
