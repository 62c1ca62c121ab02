-- Write down what a supervisor says of itself and its children. Run by the parent when somebody has asked for it, and now and then.
UPDATE jobherd.supervisors SET facts = %(facts)s::jsonb, facts_at = clock_timestamp() WHERE id = %(supervisor)s
