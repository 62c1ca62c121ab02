"""Processes that belong to no slot: how much memory a child takes, and what the dead have left behind.

The parent is a subreaper: what a dead child's daemon escaped to (a session of its own, two forks deep) becomes the parent's child and is found
here. Only what carries our mark in its environment, or our name as its title, is ended: a supervisor that is process 1 of a container
inherits strangers too, and they are none of our business.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

MARK: Final = b"JOBHERD_CHILD="
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Strays:
    """Ends what escaped."""

    def __init__(self) -> None:
        self._strangers = _children()

    def end(self, known: set[int]) -> list[int]:
        """Kill what is our child, is in no slot, and carries our mark. Returns their pids."""
        ended = []
        children = _children()
        self._strangers &= children  # a number whose process is gone may be given to anybody
        for pid in children - known - self._strangers:
            if _ours(pid):
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


def _children() -> set[int]:
    me = os.getpid()
    with suppress(OSError), open(f"/proc/{me}/task/{me}/children", "rb") as file:
        return {int(pid) for pid in file.read().split()}
    return set()


def _ours(pid: int) -> bool:
    with suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if any(entry.startswith(MARK) for entry in file.read().split(b"\0")):
                return True
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read()
            return title.startswith(b"jobherd:") and not title.startswith(b"jobherd: supervisor")  # a look-up of ours has our title
    return False
