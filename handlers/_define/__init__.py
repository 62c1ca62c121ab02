"""Declares handlers, hooks, claim filters and table stores.

Declaring must not open a connection or read a setting.
"""
