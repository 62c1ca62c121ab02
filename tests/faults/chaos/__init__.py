"""Faults of every sort at once, drawn from a seed.

`python -m tests.faults.chaos`, or `make chaos`.
"""
