"""The supervisor's database session: a non-blocking connection, the lease, and notifications.

Nothing here may wait for an answer: a database that does not answer must not delay a kill or a
wake-up.
"""
