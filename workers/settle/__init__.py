"""The claim that a worker holds, and how the outcomes of its jobs are recorded.

Every write names the fencing token of the claim. A write without it could record an outcome of a job
that another worker runs.
"""
