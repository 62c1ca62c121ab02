-- Write a few bytes to the log and nothing else: what its commit takes is what a durable commit takes here. Run by `jobherd bench`.
SELECT pg_catalog.pg_logical_emit_message(true, 'jobherd', '')
