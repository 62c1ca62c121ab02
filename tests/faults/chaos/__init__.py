"""Faults of every kind at the same time, drawn from a seed.

`python -m tests.faults.chaos`, or `make chaos`.
"""
