"""Counts finished jobs into the rollup, a span at a time, when no due job has to wait for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.workers.maintenance.partitions import SLOW
from jobherd.workers.maintenance.rollup import COARSEN, KEEP_DAYS, LAG, STEPS, CountPace

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session
    from jobherd.workers.maintenance.partitions import Partitions

_UNCOUNTED: Final = 60.0
"""Finished jobs are counted when no job is due soon, or after this many seconds in any case."""
_SHORT: Final = 0.05
"""Seconds. A count that takes no longer is made at any time."""
_QUIET: Final = 3.0
"""Seconds until the next look, while rows may move to new partitions."""
_PATIENCE: Final = 30.0
"""Seconds without data from the server after which the session counts as lost, at least."""


class FinishedCount:
    """Counts what has finished since the last count.

    due_at: monotonic time at which `count` is due next.
    """

    def __init__(self, session: Session, partitions: Partitions) -> None:
        self.due_at = 0.0
        self._session = session
        self._partitions = partitions
        self._pace = CountPace()
        self._counted = 0.0
        self._coarsen_at = 0.0

    def count(self, next_job_at: float) -> None:
        """Count, unless a job that becomes due at `next_job_at` would have to wait for it."""
        pace, begun = self._pace, time.monotonic()
        if not self._partitions.rows_stay:
            # A row that moves to its partition looks new, and would be counted twice.
            self.due_at = max(self._partitions.due_at, begun + _QUIET)
            return
        if (
            pace.took > _SHORT
            and begun + 2 * pace.took > next_job_at
            and begun < self._counted + pace.pause + _UNCOUNTED
        ):
            self.due_at = max(begun, next_job_at) + _SHORT
            return
        with self._session.with_patience(max(20 * pace.took, _PATIENCE) if self._counted else SLOW):
            [(_, behind)] = self._session.run("maintenance/update_rollup", {"span": pace.span, "lag": LAG})
        self._counted = time.monotonic()
        pace.done(took=self._counted - begun, behind=behind)
        self.due_at = self._counted + pace.pause
        if self._counted >= self._coarsen_at:
            self._coarsen_at = self._counted + COARSEN
            for step, coarser, older in STEPS:
                self._session.run("maintenance/coarsen_rollup", {"step": step, "coarser": coarser, "older": older})
            self._session.run("maintenance/delete_rollup", {"days": KEEP_DAYS})
