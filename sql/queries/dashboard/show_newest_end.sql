-- Return the database's time, and when the newest finished job by id ended: about when the last jobs ended. Run by the
-- dashboard, to begin a list by time of end where there are jobs. Null: there is none.
SELECT clock_timestamp() AS now, (SELECT h.finished_at FROM jobherd.history h ORDER BY h.id DESC LIMIT 1) AS ended
