-- What the functions that enqueue jobs check: payloads, webhooks, traces, and whether the role may enqueue the job.

-- Returns the path and the reason of the first value that a worker cannot handle, or null. Walks the
-- whole document, so it is only called for one that looks suspicious.
CREATE FUNCTION jobherd.hostile_path(document jsonb, path text DEFAULT '$', depth integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    found text;
    part  record;
BEGIN
    IF jsonb_typeof(document) IN ('object', 'array') AND depth > 100 THEN
        RETURN path || ': nested deeper than 100 levels';
    ELSIF jsonb_typeof(document) = 'number' AND length(trunc(abs(document::numeric))::text) > 1000 THEN
        RETURN path || ': an integer of more than 1,000 digits';
    ELSIF jsonb_typeof(document) = 'object' THEN
        FOR part IN SELECT key, value FROM jsonb_each(document) LOOP
            found := jobherd.hostile_path(part.value, path || '.' || part.key, depth + 1);
            IF found IS NOT NULL THEN RETURN found; END IF;
        END LOOP;
    ELSIF jsonb_typeof(document) = 'array' THEN
        FOR part IN SELECT ordinality - 1 AS key, value FROM jsonb_array_elements(document) WITH ORDINALITY LOOP
            found := jobherd.hostile_path(part.value, path || '[' || part.key || ']', depth + 1);
            IF found IS NOT NULL THEN RETURN found; END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

-- A traceparent (W3C Trace Context); after a space each, its tracestate, which may be empty, and its baggage.
CREATE FUNCTION jobherd.check_traceparent(traceparent text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    IF traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}( [!-~]*( [!-~]+)?)?$'
       OR left(traceparent, 55) ~ '^ff|^..-0{32}|-0{16}-..$' OR length(traceparent) > 1024 THEN
        RAISE EXCEPTION 'must be like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN traceparent;
END $$;

-- Checks that webhooks are enabled: otherwise the call would never be made, without an error.
CREATE FUNCTION jobherd.check_webhook(url text)
RETURNS text
LANGUAGE plpgsql STABLE STRICT
AS $$
BEGIN
    IF url !~* '^https?://[^/?#@[:space:][:cntrl:]]+([/?][^[:space:][:cntrl:]]*)?$' OR length(url) > 2000 THEN
        RAISE EXCEPTION 'must be a URL like https://example.com/done, without a user, at most 2000 characters';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RAISE EXCEPTION 'jobherd.enqueue: webhooks are not enabled'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Start a supervisor with JOBHERD_WEBHOOK_SECRET, which signs the calls;'
                         ' or call jobherd.enable_webhooks() before.';
    END IF;
    RETURN url;
END $$;

-- Raises an error unless the session's role may enqueue such jobs. For functions that insert jobs as the owner, such as
-- enqueue_unique: the rights and the policies of the role do not apply there. Compares by bytes: in the
-- order of a database with an ICU or other collation, `jobs;` comes before `jobs:`, and system kinds would pass.
CREATE FUNCTION jobherd.check_producer(kind text, tenant text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    who CONSTANT name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    IF NOT has_column_privilege(who, 'jobherd.ready', 'payload', 'INSERT')
       OR (starts_with(kind, 'jobs:') AND NOT has_column_privilege(who, 'jobherd.ready', 'id', 'INSERT')) THEN
        RAISE EXCEPTION 'jobherd: role % must not enqueue jobs of kind %', quote_ident(who), left(kind, 120)
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Cost: the first conditions hold for most producers, and need no query. The owner is the current user.
    IF pg_has_role(who, current_user, 'USAGE') OR pg_has_role(who, to_regrole('jobherd_enqueue'), 'USAGE')
       OR pg_has_role(who, to_regrole('jobherd_work'), 'USAGE') OR pg_has_role(who, to_regrole('jobherd_admin'), 'USAGE') THEN
        RETURN;
    END IF;
    IF (SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass)
       AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = who AND r.rolbypassrls)
       AND (tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd: role % must not enqueue jobs of tenant %', quote_ident(who),
            coalesce(quote_literal(left(tenant, 120)), 'null')
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- Returns null for a job that has none of these. Clients call it with named parameters and never
-- write the type out, so the type can grow without rejecting older clients. By assignment: a
-- further attribute of the type changes nothing here.
CREATE FUNCTION jobherd.extras_of(
    tenant text, webhook text, payload_bytes bytea, parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL,
    unique_key bytea DEFAULT NULL
)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    made jobherd.extras;
BEGIN
    IF num_nonnulls(tenant, webhook, payload_bytes, parent_id, traceparent, unique_key) = 0 THEN
        RETURN NULL;
    END IF;
    made.tenant := tenant;
    made.webhook := webhook;
    made.payload_bytes := payload_bytes;
    made.parent_id := parent_id;
    made.traceparent := traceparent;
    made.unique_key := unique_key;
    RETURN made;
END $$;
