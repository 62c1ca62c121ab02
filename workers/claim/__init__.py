"""How a worker reserves jobs.

One statement per claim, its conditions, its start position and its size.

Nothing here runs or settles a job.
"""
