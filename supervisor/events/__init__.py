"""What each event means for the fleet and the other parts: signals, commands, answers, notifications.

It records facts on the fleet and passes requests on. It must not decide what happens to a child:
`policy/plan.py` does that.
"""
