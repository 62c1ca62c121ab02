"""Reports the progress of running jobs to the gateway, as the maintenance process writes it to a database.

It reads the status boards of the workers: a handler that runs sends no messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.changed_progress import ChangedProgress
from jobherd.workers.remote.results import progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.ipc.status_board import StatusBoard

EVERY: Final = 1.0
"""Seconds between two checks."""
NEVER: Final = float("inf")


class ProgressReports:
    """tell: takes a report. It ignores that of a task which is not open."""

    def __init__(self, boards: Sequence[StatusBoard], tell: Callable[[m.Progress], None]) -> None:
        self._changed = ChangedProgress(boards)
        self._tell = tell
        self._at = 0.0

    def wake_at(self, *, busy: bool) -> float:
        """Return when `step` must be called. busy: a worker has a task."""
        return self._at if busy else NEVER

    def step(self, now: float, *, busy: bool) -> None:
        """Report what has changed, if it is time."""
        if busy and now >= self._at:
            self._at = now + EVERY
            for job, token, text in self._changed.find():
                self._tell(progress_of(token, job, text))
