-- Mark that a child process has no backend of its own: behind a pooler the one that served it serves others
-- next, and must not be ended when the child dies.
UPDATE jobherd.children SET backend_pid = 0 WHERE id = %(child)s
