"""What each event means for the slot table and the other parts: signals, commands, answers, notifications.

It records facts in the slot table and passes requests on. It must not decide what happens to a child:
`policy/plan.py` does that.
"""
