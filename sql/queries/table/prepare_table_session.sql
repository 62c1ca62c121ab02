-- Prepare a session that works on an application's table. It may wait with an open transaction for as long as a
-- job runs, and a lost host must not keep its locks for the two hours that the system allows. Run by a worker or
-- resetter, on its second connection; behind a pooler in each of its transactions (%(local)s), because the
-- backend serves another client next.
SELECT set_config('idle_in_transaction_session_timeout', '0', %(local)s::boolean), set_config('idle_session_timeout', '0', %(local)s::boolean),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', %(local)s::boolean) END,
       set_config('tcp_keepalives_idle', '10', %(local)s::boolean), set_config('tcp_keepalives_interval', '3', %(local)s::boolean),
       set_config('tcp_keepalives_count', '3', %(local)s::boolean), set_config('lock_timeout', %(lock_timeout)s, %(local)s::boolean)
