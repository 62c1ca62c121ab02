"""Makes the database connection a component of the loop: one step, and the socket to wait on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import selectors

    from jobherd.supervisor.database.connection import DatabaseConnection


class DatabaseSession:
    """Steps the connection and registers its socket."""

    def __init__(self, db: DatabaseConnection, selector: selectors.BaseSelector) -> None:
        self._db = db
        self._selector = selector
        self._waits_on = (-1, 0, 0)
        """The registered socket, the epoch of its session, and the events that are waited for."""

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._db.wake_at(now)

    def step(self, now: float) -> None:
        """Send and receive what is possible, and update what the selector waits for."""
        self._db.step(now)
        # A lost session has closed its socket: a child forked in this turn may get the number.
        self._register()

    def _register(self) -> None:
        fd = self._db.fileno()
        wanted = fd, self._db.epoch, self._db.events() if fd >= 0 else 0
        if wanted == self._waits_on:
            return
        if self._waits_on[0] >= 0:
            # The old socket may be closed already. A stale entry would make the selector spin, so
            # unregister it by number.
            with suppress(KeyError, ValueError, OSError):
                self._selector.unregister(self._waits_on[0])
        if fd >= 0:
            self._selector.register(fd, wanted[2])
        self._waits_on = wanted
