-- Return the transactions that hold the lock of committing producers (the gate of schema/05_wake.sql). They are
-- committing jobs, perhaps without a notification, and these jobs are not visible yet. %(seen)s: only of these
-- transactions; null: all. Run by the supervisor once it holds the sleep keys. It reads the locks and does not
-- wait for them: a session that waited would wait for newcomers too, and with enough producers the gate is never
-- free.
SELECT virtualtransaction
  FROM pg_locks
 WHERE locktype = 'advisory' AND classid = 1785684584 AND objid = 0 AND objsubid = 2
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (%(seen)s::text[] IS NULL OR virtualtransaction = ANY (%(seen)s::text[]))
