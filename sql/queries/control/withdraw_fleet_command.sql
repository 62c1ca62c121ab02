-- Withdraw a fleet command that its supervisor has not taken, because no process waits for it any more; true if
-- it will not be executed.
WITH mine AS (
    UPDATE jobherd.fleet_commands SET done_at = clock_timestamp(), error = 'withdrawn: the supervisor did not take it in time'
     WHERE id = %(order)s AND taken_at IS NULL AND done_at IS NULL
    RETURNING id
)
SELECT EXISTS (SELECT FROM mine) AS withdrawn
