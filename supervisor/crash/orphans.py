"""What only the kernel knows of processes: how much memory a child takes, how many want a processor, and what the dead have left behind.

The parent is a subreaper: what a dead child's daemon escaped to (a session of its own, two forks deep) becomes the parent's child and is found
here. Whose it is, is told by our mark in its environment, or by our title if it has begun no program. A program with neither, since somebody gave
it an environment of its own, can only be ours where nobody else's orphans come to us; it is ended once no child is as old as it is. A supervisor
that is process 1 of a container, or was started with children, inherits strangers too, and they are none of our business.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.system.procfs import started

if TYPE_CHECKING:
    from collections.abc import Collection

    from jobherd.supervisor.policy.slot import Slot

MARK: Final = b"JOBHERD_CHILD="
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Make this process inherit what its dead children leave behind, so that a daemon that escaped by setsid can be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Orphans:
    """Ends what escaped."""

    def __init__(self) -> None:
        self._strangers = _children()
        self._alone = os.getpid() != 1 and not self._strangers
        """Whatever becomes our child was started by a child of ours."""

    def end(self, alive: Collection[Slot] = ()) -> list[int]:
        """Kill what is our child and was left by a child that is dead. Returns their pids. alive: the slots whose children live."""
        ended = []
        children = _children()
        self._strangers &= children  # a number whose process is gone may be given to anybody
        for pid in children - {slot.pid for slot in alive} - self._strangers:
            title, environment = _read(pid, "cmdline"), _read(pid, "environ")
            if not title and not environment:
                continue  # it begins a program this instant, or is dead: who it is shows at the next look
            marks = [entry for entry in environment.split(b"\0") if entry.startswith(MARK)]
            if title.startswith(b"jobherd: supervisor"):
                continue  # a look-up of host names has our own title
            if title.startswith(b"jobherd: "):
                owners = [slot for slot in alive if title.startswith(f"jobherd: {slot.name} ".encode()) and _is_as_old(slot.pid, pid)]
            elif marks:
                owners = [slot for slot in alive if marks[0].endswith(f":{slot.incarnation}".encode())]
            elif self._alone:
                owners = [slot for slot in alive if slot.kind.loads and _is_as_old(slot.pid, pid)]
            else:
                self._strangers.add(pid)
                continue
            if not owners:  # else it belongs to a job that may run yet: a neighbour's death is none of its business
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
        return ended


def rss(pid: int) -> int:
    """Return how many bytes of memory a process has in use; 0 if it is gone."""
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def crowd() -> float:
    """Return how many processes want each processor at this moment, ourselves not counted; 1 while each has one."""
    with suppress(OSError, IndexError, ValueError), open("/proc/loadavg", "rb") as file:
        wanting = int(file.read().split()[3].partition(b"/")[0]) - 1
        return max(1.0, wanting / len(os.sched_getaffinity(0)))
    return 1.0


def _children() -> set[int]:
    me = os.getpid()
    with suppress(OSError), open(f"/proc/{me}/task/{me}/children", "rb") as file:
        return {int(pid) for pid in file.read().split()}
    return set()


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
    return b""


def _is_as_old(child: int, pid: int) -> bool:
    """Whether a process may have been started by that child, by their times."""
    with suppress(OSError):
        before, after = started(child), started(pid)
        return before is not None and after is not None and before <= after
    return False
