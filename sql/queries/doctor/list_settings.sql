-- List the server settings that Jobherd depends on, with the values of this session. row_security, which this
-- session has set, is shown with the value for other sessions of this role.
SELECT name, CASE name WHEN 'row_security' THEN reset_val ELSE setting END AS setting, unit, source, pending_restart
  FROM pg_settings
 WHERE name IN ('server_version_num', 'server_encoding', 'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
                'max_connections', 'superuser_reserved_connections', 'default_transaction_isolation', 'default_transaction_read_only', 'statement_timeout',
                'idle_session_timeout', 'idle_in_transaction_session_timeout', 'lock_timeout', 'transaction_timeout',
                'max_prepared_transactions', 'checkpoint_timeout', 'max_wal_size', 'session_replication_role', 'row_security')
