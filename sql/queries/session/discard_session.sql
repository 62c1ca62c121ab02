-- Reset the session of job transactions: settings, temporary tables, prepared statements and advisory locks of
-- one job must not reach the next one.
DISCARD ALL
