"""Forks, signals and reaps child processes, and reads their pipes and status boards.

The policy decides, this package acts. It must not decide when a process is stopped or replaced, and
it runs no user code.
"""
