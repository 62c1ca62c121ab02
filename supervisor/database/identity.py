"""Identifies this supervisor, and finds dead supervisors on the same machine.

The database cannot check processes. A pid is unique only on one boot of one machine in one pid
namespace, and only together with the start time of its process. So containers with equal host names
never consider each other dead, and a reused pid is not mistaken for the earlier process.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from jobherd.workers.system.procfs import alive, started


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, so that others on this machine can find it again."""

    host: str
    machine: str
    pid: int
    pid_started: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another supervisor that was registered from this machine, with one of its children."""

    supervisor: int
    pid: int
    pid_started: int
    child_pid: int | None
    child_started: int | None


def identity() -> Identity:
    """Return the identity of this process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    pid = os.getpid()
    return Identity(socket.gethostname(), f"{boot}/{os.readlink('/proc/self/ns/pid')}", pid, started(pid) or 0)


def dead(neighbours: list[Neighbour]) -> list[int]:
    """Return the dead supervisors without living children; kill children that still live.

    Their own maintenance process does that within two seconds; this is for one that died too. Jobs
    may be reclaimed only when no process runs them any more.
    """
    gone: list[int] = []
    for supervisor in sorted({neighbour.supervisor for neighbour in neighbours}):
        rows = [neighbour for neighbour in neighbours if neighbour.supervisor == supervisor]
        if alive(rows[0].pid, rows[0].pid_started):
            continue
        left = [row for row in rows if row.child_pid and row.child_started and alive(row.child_pid, row.child_started)]
        for row in left:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(row.child_pid or 0, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(row.child_pid or 0, signal.SIGKILL)  # a job may have moved it to another group
        if not left:
            gone.append(supervisor)
    return gone
