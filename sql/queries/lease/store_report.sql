-- Store what a supervisor reports about itself and its child processes. Run by the supervisor on request, and
-- from time to time.
UPDATE jobherd.supervisors SET facts = %(facts)s::jsonb, facts_at = clock_timestamp() WHERE id = %(supervisor)s
