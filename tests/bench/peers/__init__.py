"""Other job queues on PostgreSQL, measured beside this one on the same server.

`python -m tests.bench.peers`, or `make bench-peers`.
"""
