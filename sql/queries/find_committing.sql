-- Return the transactions that are in the gate: committing jobs, perhaps without a notification, and not visible yet. %(seen)s: of these
-- only; null: all. Run by the parent once it holds the sleep keys; locks are looked at and not waited for, for whoever waited would
-- have to wait for newcomers too, and with enough producers the gate is never empty.
SELECT virtualtransaction
  FROM pg_locks
 WHERE locktype = 'advisory' AND classid = 1785684584 AND objid = 0 AND objsubid = 2
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (%(seen)s::text[] IS NULL OR virtualtransaction = ANY (%(seen)s::text[]))
