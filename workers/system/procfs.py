"""Which process a number stands for: a pid says it only together with when it was started, for numbers are given again.

Everybody may ask; nothing here ends anybody.
"""

from __future__ import annotations

import os
from typing import Final

_GONE: Final = (b"Z", b"X")


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if there is none to be seen (a zombie counts as none).

    Raises OSError if it cannot be told: the system has no file to read it from.

    >>> import os
    >>> started(os.getpid()) > 0, started(2**22 + 1)
    (True, None)
    """
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in _GONE else int(fields[19])


def alive(pid: int, pid_started: int) -> bool:
    """Return whether that very process still lives. Where it cannot be told it does: what it holds would be taken from it, and its jobs be ended.

    >>> import os
    >>> alive(os.getpid(), started(os.getpid())), alive(os.getpid(), 1), alive(2**22 + 1, 1)
    (True, False, False)
    """
    try:
        return started(pid) == pid_started or (not os.path.exists(f"/proc/{pid}") and _is_hidden(pid))
    except OSError:
        return True


def space() -> int:
    """Return the pid namespace that we are in, as the kernel numbers them: in another one the same pid is another process."""
    return int(os.readlink("/proc/self/ns/pid").strip("pid:[]"))


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process of that number though /proc shows none, as where each user sees only what is his own."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # one of ours that was born this instant: it is not who was meant


def _stat(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
