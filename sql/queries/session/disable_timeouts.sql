-- Disable all time limits of the role or the database for this session, or only for this transaction
-- (%(local)s): they are meant for people's queries, and a settlement that is ended after 50 ms each time would
-- never be written. The last one exists from PostgreSQL 17 on. Run by a child process when it connects, and
-- before migrations.
SELECT set_config('statement_timeout', '0', %(local)s::boolean), set_config('lock_timeout', '0', %(local)s::boolean),
       set_config('idle_in_transaction_session_timeout', '0', %(local)s::boolean), set_config('idle_session_timeout', '0', %(local)s::boolean),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', %(local)s::boolean) END
