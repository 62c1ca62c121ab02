-- List the tables of the schema %(schema)s with row-level security that Jobherd did not enable, whether it hides
-- their rows from this role, and the event triggers that may have enabled it. The three tables that tenants
-- share have policies for each of Jobherd's roles. A partition is read through its parent, and only the parent's
-- row-level security counts.
SELECT c.relname::text AS name, format('%%I.%%I', %(schema)s::text, c.relname) AS called, row_security_active(c.oid) AS hidden,
       ARRAY(SELECT e.evtname::text FROM pg_event_trigger e WHERE e.evtenabled <> 'D' AND e.evtevent = 'ddl_command_end' ORDER BY 1) AS triggers
  FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relrowsecurity
   AND c.relname NOT IN ('ready', 'scheduled', 'history')
 ORDER BY 1
