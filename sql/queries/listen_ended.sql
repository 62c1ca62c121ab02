-- Hear of jobs that end. Run by whoever waits for some, before it says so (announce_wait.sql).
LISTEN jobherd_done
