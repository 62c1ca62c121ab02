-- Check the jobs that new jobs wait for. Run by the gateway for a principal that is limited to tenants: its session is not.
-- Parameters: after (ids), when, tenants. Raises invalid_parameter_value, as the enqueue does.
SELECT jobherd.check_upstreams(%(after)s::bigint[], coalesce(%(when)s::text, 'completed'), %(tenants)s::text[])
