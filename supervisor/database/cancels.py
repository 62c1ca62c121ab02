"""Finds the canceled jobs among those that this supervisor's children hold.

A cancellation is notified. Notifications can be lost, so each renewal of the lease queries too, and
once a second while a job has run for longer than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import DatabaseConnection, Link

if TYPE_CHECKING:
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable

EVERY: Final = 1.0
"""Seconds between two queries, while a job has run for longer than that."""


class Cancels:
    """Queries for canceled jobs and records them in the slot table."""

    def __init__(self, db: DatabaseConnection, slot_table: SlotTable) -> None:
        self._db = db
        self._slot_table = slot_table
        self._at = 0.0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        # What ran under a lost registration runs until it is ended; the next registration queries.
        return self._due() if self._db.link is Link.UP and self._slot_table.supervisor else float("inf")

    def step(self, now: float) -> None:
        """Query if that is due."""
        if self._db.link is Link.UP and self._slot_table.supervisor and now >= self._due():
            self._at = now + EVERY
            self.query()

    def query(self) -> None:
        """Query now: one of this supervisor's jobs may have been canceled."""
        if self._slot_table.supervisor:
            self._db.ask("control/find_cancels", {"supervisor": self._slot_table.supervisor}, self._found)

    def _due(self) -> float:
        oldest = min(
            (slot.seen.work.started for slot in self._slot_table.alive() if slot.seen.work.runs), default=float("inf")
        )
        return max(self._at, oldest + EVERY)

    def _found(self, answer: Answer) -> None:
        for incarnation, token, job in answer or []:
            self._slot_table.on_cancel(incarnation=int(incarnation or 0), token=int(token or 0), job=int(job or 0))
