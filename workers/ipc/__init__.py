"""Everything that passes between the supervisor and a child: shared memory and pipes, both ends.

A payload or a result must not pass here, and no write may block: a full pipe would stop two processes.
"""
