-- List the kinds with redacted values, and the paths to these. Run by the dashboard every few seconds while a
-- page is open.
SELECT name, redact FROM jobherd.kinds WHERE redact <> '[]'
