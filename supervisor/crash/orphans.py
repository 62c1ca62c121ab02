"""Finds and ends processes that dead children left behind.

The supervisor is a subreaper: a daemon of a dead child (in a session of its own, two forks deep)
becomes the supervisor's child and is found here. A mark in its environment tells which child it
belongs to, or the process title if it has not started a program.

A program may have neither, if its environment was replaced. It can only be Jobherd's if the
supervisor inherits no other orphans; it is ended once no living child is old enough to have started
it. A supervisor that is process 1 of a container, or was started with children, also inherits
unrelated processes. It must not end those.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.system import procfs
from jobherd.workers.system.procfs import started

if TYPE_CHECKING:
    from collections.abc import Collection

    from jobherd.supervisor.policy.slot import Slot

MARK: Final = b"JOBHERD_CHILD="
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Become the parent of processes that dead children leave behind, even after setsid."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Orphans:
    """Finds and ends orphans."""

    def __init__(self) -> None:
        self._strangers = procfs.own_children()
        self._alone = os.getpid() != 1 and not self._strangers
        """Every new child of this process was started by a child of the supervisor."""

    def end(self, alive: Collection[Slot] = ()) -> list[int]:
        """Kill orphans of dead children; return their pids.

        Args:
            alive: the slots whose children are alive.
        """
        ended = []
        children = procfs.own_children()
        self._strangers &= children  # the number of a dead process may be reused
        for pid in children - {slot.process.pid for slot in alive} - self._strangers:
            title, environment = _read(pid, "cmdline"), _read(pid, "environ")
            if not title and not environment:
                continue  # it is just starting a program, or is dead: the next scan can identify it
            marks = [entry for entry in environment.split(b"\0") if entry.startswith(MARK)]
            if title.startswith(b"jobherd: supervisor"):
                continue  # a name look-up and the file watcher have the supervisor's title
            if title.startswith(b"jobherd: "):
                owners = [
                    slot
                    for slot in alive
                    if title.startswith(f"jobherd: {slot.name} ".encode()) and _is_as_old(slot.process.pid, pid)
                ]
            elif marks:
                owners = [slot for slot in alive if marks[0].endswith(f":{slot.process.incarnation}".encode())]
            elif self._alone:
                owners = [slot for slot in alive if slot.kind.loads and _is_as_old(slot.process.pid, pid)]
            else:
                self._strangers.add(pid)
                continue
            if not owners:  # otherwise it belongs to a living child, and another child's death must not end it
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
        return ended


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return procfs.read(pid, name)
    return b""


def _is_as_old(child: int, pid: int) -> bool:
    """Return whether that child may have started a process, judged by their start times."""
    with suppress(OSError):
        before, after = started(child), started(pid)
        return before is not None and after is not None and before <= after
    return False
