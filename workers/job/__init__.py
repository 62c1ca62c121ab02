"""A job on its way through a worker: the claimed row, and the outcome.

Values only. Nothing here talks to a database or a process.
"""
