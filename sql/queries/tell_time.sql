-- The database's time. Run by `jobherd bench` before a drain, and to see what a round trip takes.
SELECT clock_timestamp() AS now
