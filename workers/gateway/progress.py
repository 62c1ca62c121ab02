"""Keeps the latest progress that remote workers report, and has it written from time to time.

People read it, and nothing depends on it: it is not acknowledged, and a write that fails is not
repeated. The latest report of a task is also recorded with its outcome, see `judge.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import orjson

from jobherd.workers.gateway.actions import TaskRef
from jobherd.workers.run.progress import encode_progress

if TYPE_CHECKING:
    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.peer import Worker
    from jobherd.workers.gateway.state import Session

EVERY: Final = 1.0
"""Seconds between two writes, as for the jobs of local workers."""
NEVER: Final = float("inf")


class ProgressReports:
    """The reports that are to be written: the latest of each task."""

    def __init__(self) -> None:
        self._waiting: dict[TaskRef, str] = {}
        self._at = 0.0

    def note(self, session: Session, worker: Worker, report: m.Progress) -> None:
        """Note a report. That of a task that the session does not hold is ignored."""
        ref = TaskRef(report.task.task_id, report.task.claim)
        task = session.task(ref)
        if task is None or not task.state.counts:
            return
        fraction = min(max(report.fraction, 0.0), 1.0) if math.isfinite(report.fraction) else 0.0
        try:
            data = orjson.loads(report.data) if report.data else None
        except orjson.JSONDecodeError:
            data = None
        sealed = worker.rules_of(task.job.kind).sealed
        task.progress = encode_progress(fraction, report.note, data, encrypts=sealed).decode()
        self._waiting[ref] = task.progress

    def wake_at(self) -> float:
        """Return when `take` has something to write."""
        return self._at if self._waiting else NEVER

    def take(self, now: float) -> dict[TaskRef, str]:
        """Return what is to be written now."""
        if not self._waiting or now < self._at:
            return {}
        taken, self._waiting, self._at = self._waiting, {}, now + EVERY
        return taken
