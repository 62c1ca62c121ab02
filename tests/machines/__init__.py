"""Machines: a part of the product driven by any sequence of moves there may be, against what must always hold.

A move is a name and a number, so a sequence of them is a value: hypothesis makes such sequences and
shrinks one that fails, `python -m tests.machines` makes a million moves from a seed and cuts down
what fails. `herd.py` is the parent's fleet and plan in a world of made-up children; `queue.py` is
the job's states in a real PostgreSQL beside a model of them in Python.
"""
