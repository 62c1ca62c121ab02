-- Return the database's time. Run by `jobherd bench` before a drain, and to measure a round trip.
SELECT clock_timestamp() AS now
