"""Reads processes from /proc: the only parser of its files.

It identifies processes by pid and start time, because the kernel reuses pids. Nothing here ends or
signals a process, and nothing decides what a process is for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_ENDED: Final = ("Z", "X")


class Stat(NamedTuple):
    """One line of `/proc/PID/stat`."""

    command: str
    state: str
    """R: it runs, or waits for a processor; S: it sleeps; D: it waits for a disk; Z, X: it has ended."""
    group: int
    session: int
    ticks: int
    """CPU time used, user and system."""
    started: int
    """Clock ticks since boot."""
    rss: int
    """Memory in bytes."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended. Its parent may not have reaped it yet."""
        return self.state in _ENDED


def stat(pid: int, *, thread: int | None = None) -> Stat | None:
    """Return the state of a process or of one of its threads, or None if none is visible.

    Raises OSError if that cannot be determined: no file descriptor is free to read it.
    """
    try:
        line = read(pid, "stat", thread=thread)
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = line.rpartition(b")")  # The command may contain spaces and parentheses.
    fields = tail.split()
    return Stat(
        head.partition(b"(")[2].decode(errors="replace"),
        fields[0].decode(),
        int(fields[2]),
        int(fields[3]),
        int(fields[11]) + int(fields[12]),
        int(fields[19]),
        int(fields[21]) * _PAGE_SIZE,
    )


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if no such process is visible.

    A zombie counts as no process. Raises OSError if that cannot be determined, as `stat`.

    >>> import os
    >>> started(os.getpid()) > 0, started(2**22 + 1)
    (True, None)
    """
    found = stat(pid)
    return None if found is None or found.ended else found.started


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


def pid_namespace() -> int:
    """Return the number of this process's pid namespace.

    In another one, the same pid is another process.
    """
    return int(os.readlink("/proc/self/ns/pid").strip("pid:[]"))


def cpu_seconds(pid: int) -> float:
    """Return how many seconds of CPU time a process has used; 0 if it is gone."""
    with suppress(OSError):
        found = stat(pid)
        return 0.0 if found is None else found.ticks / TICKS_PER_SECOND
    return 0.0


def rss(pid: int) -> int:
    """Return the bytes of memory that a process uses; 0 if it does not exist."""
    with suppress(OSError, IndexError):
        return int(read(pid, "statm").split()[1]) * _PAGE_SIZE
    return 0


def wait_channel(pid: int, *, thread: int | None = None) -> str | None:
    """Return the kernel function in which a process or a thread sleeps; None if that is not known."""
    with suppress(OSError):
        name = read(pid, "wchan", thread=thread).decode(errors="replace")
        return None if name in ("", "0") else name
    return None


def signal_set(pid: int, name: str) -> int | None:
    """Return a signal set of a process's main thread, such as SigCgt or SigBlk, as a bit mask.

    None if the kernel does not show it. Raises OSError if the process is gone.
    """
    _, found, rest = read(pid, "status").partition(b"\n" + name.encode() + b":\t")
    return int(rest[:16], 16) if found else None


def runnable_per_processor() -> float:
    """Return runnable processes per processor, without this one; at least 1."""
    with suppress(OSError, IndexError, ValueError), open("/proc/loadavg", "rb") as file:
        runnable = int(file.read().split()[3].partition(b"/")[0]) - 1
        return max(1.0, runnable / len(os.sched_getaffinity(0)))
    return 1.0


def processes() -> list[int]:
    """Return the pids of all visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def threads(pid: int) -> list[int]:
    """Return the numbers of a process's threads in ascending order. Raises OSError if it is gone."""
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def own_children() -> set[int]:
    """Return the pids of this process's children, if its main thread has forked them."""
    pid = os.getpid()
    with suppress(OSError):
        return {int(child) for child in read(pid, "children", thread=pid).split()}
    return set()


def open_descriptors() -> set[int]:
    """Return the file descriptors of this process. One of them was used to read them, and is closed."""
    return {int(name) for name in os.listdir("/proc/self/fd")}


def read(pid: int, name: str, *, thread: int | None = None) -> bytes:
    """Return the content of a process's or thread's file. Raises OSError if it cannot be read."""
    folder = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()


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
