-- Return the role of this session as SQL writes it, and whether it may register a supervisor. Run by `jobherd run`.
SELECT quote_ident(current_user) AS role, has_table_privilege('jobherd.supervisors', 'INSERT') AS may
