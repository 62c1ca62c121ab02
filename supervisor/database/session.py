"""The database session as the loop sees it: one step, the socket to wait on, the name look-up."""

from __future__ import annotations

import selectors
from contextlib import suppress
from typing import TYPE_CHECKING

from jobherd.supervisor.process.name_lookup import NameLookup

if TYPE_CHECKING:
    from jobherd.supervisor.database.connection import DatabaseConnection


class DatabaseSession:
    """Steps the connection, resolves host names for it, and registers its socket."""

    def __init__(self, db: DatabaseConnection, selector: selectors.BaseSelector) -> None:
        self._db = db
        self._selector = selector
        self._lookup: NameLookup | None = None
        self._waits_on = (-1, 0, 0)
        """The registered socket, the epoch of its session, and the events that are waited for."""

    @property
    def fds(self) -> list[int]:
        """Descriptors that a child must close, without the socket (`DatabaseConnection.forget`)."""
        return [] if self._lookup is None else [self._lookup.fd]

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._db.wake_at(now)

    def step(self, now: float) -> None:
        """Send and receive what is possible, and update what the selector waits for."""
        self._resolve(now)
        self._db.step(now)
        # A lost session has closed its socket: a child forked in this turn may get the number.
        self._register()

    def _resolve(self, now: float) -> None:
        hosts = self._db.wants_addresses
        if hosts and self._lookup is None:
            try:
                self._lookup = NameLookup(hosts)
            except OSError as problem:
                self._db.lose(f"the system refuses a process to look up a host name: {problem.strerror}", now)
                return
            self._selector.register(self._lookup.fd, selectors.EVENT_READ)
        if self._lookup is not None:
            found = self._lookup.read()
            if found is not None or not hosts:
                self._selector.unregister(self._lookup.fd)
                self._lookup.close()
                self._lookup = None
                if found is not None:
                    self._db.addressed(found, now)

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
