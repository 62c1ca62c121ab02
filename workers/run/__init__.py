"""One job from its row to its outcome: load, decode, call, interrupt, conclude.

It writes to no database: `settle` records outcomes.
"""
