"""Which process a number stands for: a pid says it only together with when it was started, for numbers are given again.

Everybody may ask; nothing here ends anybody.
"""

from __future__ import annotations


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if there is none (a zombie counts as none).

    >>> import os
    >>> started(os.getpid()) > 0, started(2**22 + 1)
    (True, None)
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def alive(pid: int, pid_started: int) -> bool:
    """Return whether that very process still lives."""
    return started(pid) == pid_started
