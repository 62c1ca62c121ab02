"""Deletes the registrations of children that have ended, after a failover or a restored backup.

A restored backup or a lagging standby may not contain the end of a child. Its jobs would stay
claimed for as long as this supervisor lives.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import DatabaseConnection, Link

if TYPE_CHECKING:
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable

log = logging.getLogger("jobherd.supervisor")

AGAIN: Final = 0.5
"""Seconds before a rejected request is repeated."""


class EndedChildren:
    """Sends the list of living children once in each new session."""

    def __init__(self, db: DatabaseConnection, slot_table: SlotTable) -> None:
        self._db = db
        self._slot_table = slot_table
        self._at = float("inf")

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._at if self._db.link is Link.UP and self._slot_table.supervisor else float("inf")

    def step(self, now: float) -> None:
        """Send the list if that is due."""
        if self._db.link is not Link.UP or not self._slot_table.supervisor or now < self._at:
            return
        self._at = float("inf")
        slot_table = self._slot_table
        # Crash recovery is about to settle and release the jobs of `unrecovered`.
        living = [*(slot.process.incarnation for slot in slot_table.alive()), *slot_table.unrecovered]
        parameters = {"supervisor": slot_table.supervisor, "latest": slot_table.incarnations, "living": living}
        self._db.ask("recover/unregister_children", parameters, lambda answer: self._forgotten(answer, now))

    def connected(self, now: float) -> None:
        """There is a session again, or one that accepts writes again."""
        self._at = now

    def _forgotten(self, answer: Answer, sent: float) -> None:
        if answer is None:
            self._at = sent + AGAIN
        elif answer:
            log.warning(
                "the database is older than this supervisor's last writes, such as a backup or a standby that "
                "lagged: %d child processes that had ended were registered; their jobs are released",
                len(answer),
                extra={"incarnations": ",".join(str(row[0]) for row in answer[:20])},
            )
