"""Reads the state and CPU time of a process's threads from the kernel, including threads of C libraries."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any, Final

MOST: Final = 32
"""Most threads that are read: three small files each."""
_BIT: Final = 1 << (signal.SIGUSR1 - 1)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_STATES: Final = {
    "R": "runs",
    "S": "waits",
    "D": "waits in the kernel and cannot be interrupted",
    "T": "is stopped",
    "t": "is held by a debugger",
}


def tasks(pid: int) -> list[dict[str, Any]]:
    """Return the threads of a process, the main one first.

    Each has `tid`, `name`, `state` in words, `processor` in seconds, and `waits_in`, a kernel
    function.
    """
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:MOST]:
            place = f"/proc/{pid}/task/{name}"
            if (stat := _stat(place)) is not None:
                command, fields = stat
                found.append(
                    {
                        "tid": int(name),
                        "name": command,
                        "state": _STATES.get(fields[0], "has ended"),
                        "processor": (int(fields[11]) + int(fields[12])) / _TICKS,
                        "waits_in": _waits_in(place) if fields[0] in "SD" else None,
                    }
                )
    return found


def processor(pid: int) -> float:
    """Return how many seconds of CPU time a process has used; 0 if it is gone."""
    stat = _stat(f"/proc/{pid}")
    return 0.0 if stat is None else (int(stat[1][11]) + int(stat[1][12])) / _TICKS


def hears(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR1: without one, the signal would end it."""
    return _signals(pid, b"SigCgt", unknown=True)


def holds_back(pid: int) -> bool:
    """Return whether SIGUSR1 is blocked in the main thread of a process.

    It is in the handler of that signal, or a job has blocked it.
    """
    return _signals(pid, b"SigBlk", unknown=False)


def silence(pid: int) -> str:
    """Return why a process does not report its stack, as far as the kernel shows."""
    doing = next((task["state"] for task in tasks(pid)), "has ended")
    deaf = "" if hears(pid) else "has taken away what answers SIGUSR1, and "
    blocked = "has blocked SIGUSR1, and " if holds_back(pid) else ""
    return f"process {pid} does not say where it is: it {deaf}{blocked}{doing}"


def _signals(pid: int, name: bytes, *, unknown: bool) -> bool:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        _, found, rest = file.read().partition(b"\n" + name + b":\t")
        return bool(int(rest[:16], 16) & _BIT) if found else unknown  # A kernel of another kind may omit the line.
    return False


def _waits_in(place: str) -> str | None:
    with suppress(OSError), open(f"{place}/wchan", "rb") as file:
        name = file.read(64).decode(errors="replace")
        return None if name in ("", "0") else name
    return None


def _stat(place: str) -> tuple[str, list[str]] | None:
    with suppress(OSError), open(f"{place}/stat", "rb") as file:
        head, _, tail = file.read().decode(errors="replace").rpartition(")")
        return head.partition("(")[2], tail.split()
    return None
