"""What only the kernel knows of processes: how much memory a child takes, how many want a processor, and what the dead have left behind.

The parent is a subreaper: what a dead child's daemon escaped to (a session of its own, two forks deep) becomes the parent's child and is found
here. Only what carries our mark in its environment, or our name as its title, is ended: a supervisor that is process 1 of a container
inherits strangers too, and they are none of our business.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

MARK: Final = b"JOBHERD_CHILD="
_SILENT: Final = -1
"""Nothing can be read yet of a process that begins a program this instant: who it is shows at the next look."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Strays:
    """Ends what escaped."""

    def __init__(self) -> None:
        self._strangers = _children()

    def end(self, known: set[int], living: Collection[int] = ()) -> list[int]:
        """Kill what is our child, is in no slot, and carries our mark. Returns their pids.

        known: the pids of our children. living: their incarnations; what carries the mark of one of these belongs to a job that may run yet.
        """
        ended = []
        children = _children()
        self._strangers &= children  # a number whose process is gone may be given to anybody
        for pid in children - known - self._strangers:
            mark = _mark(pid)
            if mark == _SILENT or (mark is not None and mark in living):
                continue  # a neighbour's death is none of its business
            if mark is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
            else:
                self._strangers.add(pid)
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


def _mark(pid: int) -> int | None:
    """Return the incarnation of the child that has started a process, 0 if that cannot be told, or None for one that is none of ours."""
    with suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
        marks = [entry for entry in environment.split(b"\0") if entry.startswith(MARK)]
        if marks:
            number = marks[0].rpartition(b":")[2]
            return int(number) if number.isdigit() else 0
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read()
        if title.startswith(b"jobherd:") and not title.startswith(b"jobherd: supervisor"):  # a look-up of ours has our title
            return 0
        if not title and not environment:
            return _SILENT
    return None
