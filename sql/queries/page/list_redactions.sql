-- The kinds of which something is not to be shown, with the paths to it. Run by the page, every few seconds while somebody looks.
SELECT name, redact FROM jobherd.kinds WHERE redact <> '[]'
