"""Everything that passes between the supervisor and a child process.

Shared memory and pipes, both ends.

A payload or a result must not pass through a pipe, and no write may block: a full pipe would stop
two processes.
"""
