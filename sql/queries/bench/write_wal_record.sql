-- Write a few bytes to the write-ahead log and nothing else: its commit takes as long as any durable commit on
-- this server. Run by `jobherd bench`.
SELECT pg_catalog.pg_logical_emit_message(true, 'jobherd', '')
