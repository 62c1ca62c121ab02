"""Keeps the answer to a query for all viewers, and lets a page wait only a limited time for it.

An answer is kept for `PERIOD` seconds, or for `EASE` times as long as the query took. A page shows
an answer of up to `STALE` seconds if the new one is not there in `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import psycopg

from jobherd.workers.dashboard.database import Away
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger("jobherd.dashboard")

PERIOD: Final = 5.0
"""Seconds for which an answer is kept."""
EASE: Final = 20.0
"""An answer is also kept for this times the duration of its query."""
PATIENCE: Final = 0.5
"""Seconds that a page waits for a new answer."""
STALE: Final = 60.0
"""Seconds after which an old answer is no longer shown."""

T = TypeVar("T")


class CachedQuery(Generic[T]):
    """Keep the last answer of `ask`. what: its name in the log. clock: monotonic seconds."""

    def __init__(self, ask: Callable[[], Awaitable[T]], what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._what = what
        self._clock = clock
        self._taken = self._next = -float("inf")
        self._running: asyncio.Task[None] | None = None
        self.last: T | None = None
        """The last answer, however old."""
        self.away: Away | None = None
        """Why the last query failed, if the database did not answer it."""
        self.rejected = ""
        """Name of the error, if the database rejected the last query."""

    def fresh(self) -> T | None:
        """Return the last answer. None if there is none, or it is stale."""
        return None if self._clock() - self._taken >= STALE else self.last

    def forget(self) -> None:
        """Query again for the next page: something was changed."""
        self._next = -float("inf")

    async def refresh(self) -> None:
        """Query if the last result is too old, once for all who wait, and wait a limited time."""
        if self._running is None and self._clock() >= self._next:
            self._running = asyncio.get_running_loop().create_task(self._query())
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=PATIENCE)

    async def _query(self) -> None:
        started = self._clock()
        self._next = float("inf")
        try:
            self.last = await self._ask()
            self._taken, self.away, self.rejected = self._clock(), None, ""
        except Away as away:
            self.away = away
        except psycopg.Error as problem:
            self.away, self.rejected = None, error_name(problem)
            log.warning("dashboard: %s could not be queried (%s)", self._what, error_name(problem))
        finally:
            self._running = None
            if self._next == float("inf"):  # else an action came in between
                ended = self._clock()
                # an attempt to connect has cost the server nothing
                self._next = ended + (PERIOD if self.away else max(PERIOD, EASE * (ended - started)))
