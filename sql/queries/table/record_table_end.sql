-- Store why a process died while it worked on a record of an application's table. Run by the supervisor, after
-- the child's sessions have ended. Rows that no resetter has taken for a day are deleted: their store is no
-- longer declared.
WITH old AS (
    DELETE FROM jobherd.table_ends WHERE at < clock_timestamp() - interval '1 day'
)
INSERT INTO jobherd.table_ends (kind, record, token, outcome, crashed, delay, error, log, ran)
VALUES (%(kind)s, %(record)s::bigint, %(token)s::bigint, %(outcome)s, %(crashed)s::boolean, %(delay)s::double precision, %(error)s,
        %(log)s, %(ran)s::double precision)
RETURNING record
