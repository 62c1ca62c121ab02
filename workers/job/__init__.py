"""A job on its way through a worker: the row as it comes in.

Values only. Nothing here talks to a database or a process.
"""
