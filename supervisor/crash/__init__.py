"""Handles the death of a child process: explains it, recovers its jobs, ends processes that it left behind.

The order is fixed in `recovery`: terminate the backend, settle what ran, release what had not
started. Another order leaves jobs claimed or runs one twice.
"""
