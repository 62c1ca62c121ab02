"""Declares handlers, hooks, claim filters and table stores, and finds them in modules.

Declaring must not open a connection or read a setting.
"""
