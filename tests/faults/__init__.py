"""Campaigns that inject faults into real supervisors, many times.

Run one with `python -m tests.faults.kill_children`, for example. They are not tests: pytest does not collect them.
"""
