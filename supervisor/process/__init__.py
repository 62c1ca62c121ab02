"""What the supervisor does to its child processes.

Fork, signal, reap, read pipes and shared memory.

The policy decides, this package acts. It must not decide when a process is stopped or replaced, and
it runs no user code.
"""
