"""Who this supervisor is, and which of its neighbours are dead: what the database cannot know about processes.

A pid means something only on one boot of one machine in one pid namespace, and only together with the start time of its process. So
containers with equal host names never take each other for dead, and a pid that was given again is not taken for its former owner.
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
    """A process, as others on this machine can find it again."""

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
    """Return who we are."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    pid = os.getpid()
    return Identity(socket.gethostname(), f"{boot}/{os.readlink('/proc/self/ns/pid')}", pid, started(pid) or 0)


def dead(neighbours: list[Neighbour]) -> list[int]:
    """Return the supervisors that are dead and whose children are gone too; those children that are not are killed.

    Their own keeper does that within two seconds; we do it for a keeper that died as well. Jobs may be reclaimed only when nothing runs
    them any more.
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
