"""Other job queues on PostgreSQL, measured against Jobherd on the same server.

`python -m tests.bench.peers`, or `make bench-peers`.
"""
