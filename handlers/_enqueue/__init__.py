"""How jobs get into the queue, and how a producer waits for them.

Nothing connects before a call needs it. A payload is checked before it is sent.
"""
