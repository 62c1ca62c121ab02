-- Listen for finished jobs. Run by a client that waits for jobs, before it announces that (announce_wait.sql).
LISTEN jobherd_done
