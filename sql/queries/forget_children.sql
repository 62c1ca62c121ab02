-- Forget children of a supervisor that have ended and are registered all the same: all up to the %(latest)s-th that it has forked, but %(living)s. Run by
-- the parent once it has a session again: the server may be a standby that had not heard of their end, or be restored from a backup, and their
-- parent, who has given back what they held, would not do it again. What they hold is given back by release_orphans.sql.
DELETE FROM jobherd.children
 WHERE supervisor = %(supervisor)s AND incarnation <= %(latest)s::integer AND incarnation <> ALL (%(living)s::integer[])
RETURNING incarnation
