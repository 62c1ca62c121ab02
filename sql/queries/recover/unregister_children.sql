-- Delete child processes of a supervisor that have ended and are still registered: all up to the %(latest)s-th
-- that it has forked, except %(living)s. Run by the supervisor once it has a session again: the server may be a
-- standby that had not received their end, or be restored from a backup. Their supervisor has already released
-- what they held, and would not do it again. requeue_orphans.sql releases what they hold.
DELETE FROM jobherd.children
 WHERE supervisor = %(supervisor)s AND incarnation <= %(latest)s::integer AND incarnation <> ALL (%(living)s::integer[])
RETURNING incarnation
