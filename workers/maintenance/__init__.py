"""The maintenance process: promotes due jobs, keeps partitions, vacuums, counts, finds orphans.

It does what is not urgent enough for the supervisor. It runs no handler.
"""
