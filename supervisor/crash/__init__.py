"""What follows the death of a child process.

Its cause, the recovery of its jobs, processes that it left behind.

The order is fixed in `recovery`: terminate the backend, settle what ran, release what had not
started. Another order leaves jobs claimed or runs one twice.
"""
