"""Waits while the database is away, until a retry is due or waiting has no use any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.workers.database.backoff import Backoff

if TYPE_CHECKING:
    from jobherd.workers.process.spec import ChildSettings
    from jobherd.workers.process.wakeup import Wake


class StopWaiting(Exception):  # noqa: N818 - not an error: the process was asked to exit, or has lost its supervisor
    """Waiting for the database has no use any more. The message says why."""


class RetryWait:
    """Waits between two tries of one process.

    backoff: its delays. A wake during a wait starts them again with the shortest.
    """

    def __init__(self, wake: Wake, settings: ChildSettings) -> None:
        self.backoff = Backoff(settings.db_retry_initial, settings.db_retry_max, spread=(0.75, 1.25))
        self._wake = wake

    def back_off(self, *, patient: bool) -> None:
        """Wait for the next delay. Raises as `rest`."""
        # After a dismissal, no wake can end this wait any more.
        self.rest(self.backoff.next(limit=1.0 if self._wake.dismissed else float("inf")), patient=patient)

    def rest(self, seconds: float, *, patient: bool) -> None:
        """Wait this many seconds, or until the supervisor wakes this process: the database may be back.

        patient: also wait after a dismissal. Raises StopWaiting if the process must exit.
        """
        until = time.monotonic() + seconds
        while True:
            if self._wake.orphaned:
                message = "the supervisor is dead"
                raise StopWaiting(message)
            if self._wake.dismissed and not patient:
                message = "asked to exit while the database was away"
                raise StopWaiting(message)
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._wake.wait(left):
                self.backoff.reset()  # The supervisor has seen that the database is back.
                return
