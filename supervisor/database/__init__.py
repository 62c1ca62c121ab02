"""Connects the supervisor to the database: session, lease, notifications, fleet commands, cancellations.

Nothing here may wait for an answer: a database that does not answer must not delay a kill or a
wake-up.
"""
