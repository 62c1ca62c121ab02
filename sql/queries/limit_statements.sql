-- No statement of this session may run longer than that many milliseconds. Run by a web child: a measurement must not weigh on the jobs.
SELECT set_config('statement_timeout', %(milliseconds)s::text, false), set_config('idle_session_timeout', '0', false)
