"""How a worker claims jobs: when, from which queue, under which conditions, and how many.

Nothing here runs or settles a job.
"""
