"""The maintenance process.

Promotes due jobs, keeps partitions, vacuums, counts, and looks for orphans.

It does what is not urgent enough for the supervisor. It runs no handler.
"""
