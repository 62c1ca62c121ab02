"""Faults done to real supervisors, many times.

`python -m tests.faults.kill_children` and so on. Not tests: pytest does not collect them.
"""
