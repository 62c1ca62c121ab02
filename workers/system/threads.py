"""Describes what a process's threads do, including threads of C libraries, and why it may not answer SIGUSR1."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any, Final

from jobherd.workers.system import procfs

MOST: Final = 32
"""Most threads that are read: three small files each."""
_BIT: Final = 1 << (signal.SIGUSR1 - 1)
_STATES: Final = {
    "R": "runs",
    "S": "waits",
    "D": "waits in the kernel and cannot be interrupted",
    "T": "is stopped",
    "t": "is held by a debugger",
}


def describe_threads(pid: int) -> list[dict[str, Any]]:
    """Return the threads of a process, the main one first.

    Each has `tid`, `name`, `state` in words, `processor` in seconds, and `waits_in`, a kernel
    function.
    """
    found = []
    with suppress(OSError):
        for thread in procfs.threads(pid)[:MOST]:
            stat = procfs.stat(pid, thread=thread)
            if stat is not None:
                found.append(_describe(pid, thread, stat))
    return found


def _describe(pid: int, thread: int, stat: procfs.Stat) -> dict[str, Any]:
    return {
        "tid": thread,
        "name": stat.command,
        "state": _STATES.get(stat.state, "has ended"),
        "processor": stat.ticks / procfs.TICKS_PER_SECOND,
        "waits_in": procfs.wait_channel(pid, thread=thread) if stat.state in "SD" else None,
    }


def handles_sigusr1(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR1: without one, the signal would end it."""
    return _is_in_set(pid, "SigCgt", unknown=True)


def blocks_sigusr1(pid: int) -> bool:
    """Return whether SIGUSR1 is blocked in the main thread of a process.

    It is in the handler of that signal, or a job has blocked it.
    """
    return _is_in_set(pid, "SigBlk", unknown=False)


def describe_silence(pid: int) -> str:
    """Return why a process does not report its stack, as far as the kernel shows."""
    doing = next((thread["state"] for thread in describe_threads(pid)), "has ended")
    unhandled = "" if handles_sigusr1(pid) else "has replaced the handler of SIGUSR1, and "
    blocked = "has blocked SIGUSR1, and " if blocks_sigusr1(pid) else ""
    return f"process {pid} does not report its stack: it {unhandled}{blocked}{doing}"


def _is_in_set(pid: int, name: str, *, unknown: bool) -> bool:
    with suppress(OSError, ValueError):
        signals = procfs.signal_set(pid, name)
        return unknown if signals is None else bool(signals & _BIT)  # A kernel of another kind may omit the line.
    return False
