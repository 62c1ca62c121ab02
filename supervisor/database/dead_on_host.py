"""Kills the child processes that a dead supervisor has left on this host.

The dead supervisor's maintenance process does the same within two seconds; this is for one that has
died too. Another supervisor may reclaim jobs only when no process runs them any more.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from jobherd.workers.system.procfs import alive


@dataclass(frozen=True, slots=True)
class HostSupervisor:
    """Another supervisor that was registered from this host, with one of its children."""

    supervisor: int
    pid: int
    pid_started: int
    child_pid: int | None
    child_started: int | None


def kill_children_of_dead_supervisors(rows: list[HostSupervisor]) -> list[int]:
    """Kill the living children of dead supervisors, with their process groups.

    Args:
        rows: the supervisors of this host, one row per child.

    Returns:
        The ids of the dead supervisors of which no child lived any more.
    """
    without_children: list[int] = []
    for supervisor in sorted({row.supervisor for row in rows}):
        own = [row for row in rows if row.supervisor == supervisor]
        if alive(own[0].pid, own[0].pid_started):
            continue
        left = [row for row in own if row.child_pid and row.child_started and alive(row.child_pid, row.child_started)]
        for row in left:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(row.child_pid or 0, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(row.child_pid or 0, signal.SIGKILL)  # a job may have moved it to another group
        if not left:
            without_children.append(supervisor)
    return without_children
