"""Deletes rows that nothing needs any more: logs, commands, keys, flows, signals, ticks, audit entries.

The logs of a day fall due at once, millions of rows, and jobs become due meanwhile. So a step deletes a limited
number of rows of one table. Must not decide which rows are old: the statements do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.maintenance.promotion import MOST

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

_EVERY: Final = 30.0
"""Seconds between two times that old rows are searched."""
_AT_ONCE: Final = ("maintenance/delete_progress", "maintenance/delete_claim_locks", "maintenance/delete_buckets")
"""Few rows each."""
_IN_STEPS: Final = (
    "maintenance/delete_logs",
    "maintenance/delete_fleet_commands",
    "maintenance/delete_enqueue_keys",
    "maintenance/delete_flows",
    "maintenance/delete_signals",
)


class OldRows:
    """Deletes old rows, a limited number in each step.

    due_at: when old rows are searched again.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.due_at = 0.0
        self._left: dict[str, dict[str, float]] = {}
        """Statements, until they find nothing more."""

    @property
    def wake_at(self) -> float:
        """Monotonic time at which `step` or `search` has something to do."""
        return 0.0 if self._left else self.due_at

    def search(self, now: float) -> None:
        """Begin to delete what has become old."""
        for statement in _AT_ONCE:
            self._session.run(statement)
        for statement in _IN_STEPS:
            self.add(statement)
        self.due_at = now + _EVERY

    def add(self, statement: str, **parameters: float) -> None:
        """Let this statement delete rows too, until it finds nothing more."""
        self._left[statement] = {"most": MOST, **parameters}

    def step(self) -> None:
        """Delete a limited number of rows."""
        if not self._left:
            return
        statement, wanted = next(iter(self._left.items()))
        if self._session.count(statement, wanted) < MOST:
            del self._left[statement]
