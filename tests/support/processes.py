"""Waits for processes without sleeping or polling: a pidfd becomes readable when its process ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from typing import Final

from tests.support.patience import LIMIT

_PR_SET_CHILD_SUBREAPER: Final = 36


def wait_for_exit(pid: int, timeout: float = LIMIT) -> None:
    """Wait until a process has ended; a zombie has, and so has a process that does not exist.

    Raises:
        TimeoutError: the process still runs after `timeout` seconds.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        watch = select.poll()
        watch.register(fd, select.POLLIN)
        if not watch.poll(timeout * 1000):
            raise TimeoutError(f"process {pid} still runs after {timeout} s")
    finally:
        os.close(fd)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        wait_for_exit(pid, timeout=0)
    except TimeoutError:
        return True
    return False


def children_of(pid: int) -> list[int]:
    """Return the living children of a single-threaded process, oldest first."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [child for child in map(int, file.read().split()) if is_running(child)]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_at_once(pid: int) -> None:
    """Kill a process and its children so that none of them can react to another one's death.

    All are stopped first. The parent is killed last, because the kernel continues stopped orphans.
    """
    children = children_of(pid)
    for each in (pid, *children):
        os.kill(each, signal.SIGSTOP)
    for each in (*children, pid):
        os.kill(each, signal.SIGKILL)


def become_reaper() -> None:
    """Make this process the parent of orphaned descendants, so that none stays a zombie."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def members(session: int) -> set[int]:
    """Return the running processes of a session, whatever their parent is now."""
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session and is_running(int(entry.name)):
                    found.add(int(entry.name))
    return found


def wait_all_gone(pids: set[int]) -> float:
    """Wait until none of these processes runs; return the monotonic time at which the last one ended."""
    watch, fds = select.poll(), {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fds[os.pidfd_open(pid)] = pid
    for fd in fds:
        watch.register(fd, select.POLLIN)
    until = time.monotonic() + LIMIT
    while fds:
        ended = watch.poll(max(0.0, until - time.monotonic()) * 1000)
        if not ended:
            raise TimeoutError(f"still running after {LIMIT} s: {sorted(fds.values())}")
        for fd, _ in ended:
            watch.unregister(fd)
            os.close(fd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(fds[fd], os.WNOHANG)  # its parent is dead, and this process reaps orphans
            del fds[fd]
    return time.monotonic()
