"""The maintenance process: promotes due jobs, keeps partitions, vacuums, counts, looks for dead supervisors.

It does what is not urgent enough for the supervisor. It runs no handler.
"""
