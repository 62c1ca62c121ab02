-- What a process died of while it worked on a record of an application's table. Run by the parent, after the child's sessions have ended.
-- What no resetter has taken for a day is of a store that is not declared any more, and goes.
WITH old AS (
    DELETE FROM jobherd.table_ends WHERE at < clock_timestamp() - interval '1 day'
)
INSERT INTO jobherd.table_ends (kind, record, token, outcome, crashed, delay, error, log, ran)
VALUES (%(kind)s, %(record)s::bigint, %(token)s::bigint, %(outcome)s, %(crashed)s::boolean, %(delay)s::double precision, %(error)s,
        %(log)s, %(ran)s::double precision)
RETURNING record
