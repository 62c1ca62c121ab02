"""Benchmarks of real supervisors.

Run one with `python -m tests.bench.latency`, for example. They are not tests: pytest does not collect them.
"""
