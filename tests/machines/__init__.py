"""State machines: any sequence of moves drives a part of the product, and its invariants are checked.

A move is a name and a number, so a sequence of moves is a value. Hypothesis makes such sequences and
shrinks one that fails. `python -m tests.machines` makes a million moves from a seed and reduces a sequence
that fails. `herd.py` drives the supervisor's slot table and plan with simulated child processes. `queue.py`
compares the states of jobs in a real PostgreSQL with a model in Python.
"""
