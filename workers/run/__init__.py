"""Runs jobs, from the row to the outcome: loading handlers, decoding, calling, judging, logging.

Only a job's own transaction writes to the database here. `settle` records the other outcomes.
"""
