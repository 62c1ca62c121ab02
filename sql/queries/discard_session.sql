-- Make the session of job transactions as good as new: settings, temporary tables, prepared statements and advisory locks of one job are
-- not the next one's.
DISCARD ALL
