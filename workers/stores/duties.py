"""When each of the resetter's tasks for one store is due.

It asks the database nothing: `resetter.py` does the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.handlers._define.table_store import TableHandler

_RETRY_AFTER: Final = 1.0
"""Seconds until a store is tried again after the database has rejected a statement."""
NEVER: Final = float("inf")


class Duties:
    """A store, and when each of its tasks is due."""

    def __init__(self, table: TableHandler) -> None:
        self.store = table.store
        self.look_at = self.reset_at = self.beat_at = 0.0
        self.cancel_at = 0.0 if table.store.cancel_interval else NEVER
        self.quiet = False
        """Whether no record waited and none was in work by any worker at the last look."""

    def due_at(self) -> float:
        """Return when the next task is due."""
        return min(self.look_at, self.reset_at, self.beat_at, self.cancel_at)

    def put_off(self, now: float) -> None:
        """Delay all tasks by at least a second, because the database rejected something.

        Nothing is known about the store until then.
        """
        self.quiet = False
        self.look_at, self.reset_at, self.beat_at = (
            max(at, now + _RETRY_AFTER) for at in (self.look_at, self.reset_at, self.beat_at)
        )
        self.cancel_at = max(self.cancel_at, now + _RETRY_AFTER)
