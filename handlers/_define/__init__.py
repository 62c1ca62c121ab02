"""What a module of handlers declares: handlers, hooks, claim filters, table stores; and how they are found.

Declaring must not open a connection or read a setting.
"""
