"""Declarations of handlers, hooks, claim filters and table stores, and how they are found in modules.

Declaring must not open a connection or read a setting.
"""
