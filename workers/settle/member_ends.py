"""Reports to the supervisor that jobs have ended for which others may wait: members of flows, and upstream jobs.

The supervisor wakes its maintenance process, which passes the ends on. Without a report it would look
up to 1 s later. The report follows the commit of the settlement. While a worker is busy, it reports at most
4 times a second: after a report the maintenance process checks every 0.05 s while jobs end. The
last end is reported when the worker goes idle.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.pipes import MembersEnded, send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.workers.job.row import JobRow

PAUSE: Final = 0.25
"""Least seconds between two reports of a busy worker. Each one makes the maintenance process send four statements."""
_NONE: Final = '"flow":null'
"""In the extras of a job that is no member. In a string the quotes would be escaped."""


def has_members(batch: Iterable[JobRow]) -> bool:
    """Return whether a job of a claim belongs to a flow, or others wait for it."""
    return any(row.extras is not None and _NONE not in row.extras for row in batch)


class MemberEnds:
    """The ends that are not reported yet."""

    def __init__(self, report: int) -> None:
        self._report = report
        self._owed = False
        self._sent_at = 0.0

    def note(self) -> None:
        """Note that such jobs have ended, and report it unless the last report was just now."""
        self._owed = True
        if time.monotonic() - self._sent_at >= PAUSE:
            self.flush()

    def flush(self) -> None:
        """Report what is not reported yet."""
        if self._owed:
            self._owed, self._sent_at = False, time.monotonic()
            send(self._report, MembersEnded())
