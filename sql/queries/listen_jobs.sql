-- Hear the queue. Run by the parent on the one connection that listens.
LISTEN jobherd_jobs
