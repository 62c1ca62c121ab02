"""Handles events: signals, fleet commands, answers and notifications.

It records facts in the slot table and passes requests on. It must not decide what happens to a child:
`policy/plan.py` does that.
"""
