-- Have this session live however long nobody asks it, whatever role and database say. Run by those who look now and then.
SELECT set_config('idle_session_timeout', '0', false)
