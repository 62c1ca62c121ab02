"""Runs the PostgreSQL that Jobherd starts itself when no address is configured.

The server belongs to one folder and stops with the last process that uses it. It must never listen
on a network address.
"""
