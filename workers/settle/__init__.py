"""The claim that a worker holds and the recording of its outcomes.

Every write names the fencing token of the claim. A write without it could settle a job that another
worker runs.
"""
