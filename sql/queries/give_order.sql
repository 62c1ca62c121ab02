-- Ask a supervisor for something; returns the order's id. Run by people and by the page.
SELECT jobherd.order(%(supervisor)s::bigint, %(name)s::text, %(arguments)s::jsonb, %(actor)s::text, %(reason)s::text) AS id
