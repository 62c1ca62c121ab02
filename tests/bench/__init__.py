"""Measurements on real supervisors.

`python -m tests.bench.latency` and so on. Not tests: pytest does not collect them.
"""
