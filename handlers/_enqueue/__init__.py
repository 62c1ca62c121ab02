"""How jobs are enqueued, and how a producer waits for them.

No connection is opened before a call needs one. A payload is checked before it is sent.
"""
