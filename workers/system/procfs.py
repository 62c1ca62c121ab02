"""Identifies processes by pid and start time, because the kernel reuses pids.

Nothing here ends a process.
"""

from __future__ import annotations

import os
from typing import Final

_GONE: Final = (b"Z", b"X")


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if no such process is visible.

    A zombie counts as no process. Raises OSError if that cannot be determined: no file descriptor
    is free to read it.

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
    """Return whether exactly that process is alive.

    If that cannot be determined, it counts as alive: otherwise its jobs would be taken from it, and
    its processes be ended.

    >>> import os
    >>> alive(os.getpid(), started(os.getpid())), alive(os.getpid(), 1), alive(2**22 + 1, 1)
    (True, False, False)
    """
    try:
        return started(pid) == pid_started or (not os.path.exists(f"/proc/{pid}") and _is_hidden(pid))
    except OSError:
        return True


def space() -> int:
    """Return the number of this process's pid namespace.

    In another one, the same pid is another process.
    """
    return int(os.readlink("/proc/self/ns/pid").strip("pid:[]"))


def _is_hidden(pid: int) -> bool:
    """Return whether a process with that pid exists although /proc does not show it.

    With /proc mounted with hidepid, each OS user sees only its own processes.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # A process of this user that was created just now, so not the one in question.


def _stat(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
