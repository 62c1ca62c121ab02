"""Shows on every page what needs attention, from one query for all viewers.

The result is kept for `PERIOD` seconds, or for `EASE` times as long as the query took. An action ends that, so
that the next page shows its effect. A page waits at most `PATIENCE` seconds for it and is never
refused because of it. The conditions and their words are in `workers/inspect/attention.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import psycopg

from jobherd.workers.database.errors import error_name
from jobherd.workers.inspect.attention import PARAMETERS, attention
from jobherd.workers.page.database import Away, Database
from jobherd.workers.page.guard import SAFE
from jobherd.workers.page.live_updates import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from jobherd.workers.inspect.attention import Item

log = logging.getLogger("jobherd.page")

PERIOD: Final = 5.0
"""Seconds for which a result is kept."""
EASE: Final = 20.0
"""A result is also kept for this times the duration of the query."""
PATIENCE: Final = 0.5
"""Seconds that a page waits for a new result."""
STALE: Final = 60.0
"""Seconds after which an old result is no longer shown."""
_WITHOUT: Final = ("/static/", "/live", "/login")
"""Paths of answers that do not show the strip."""


class Attention:
    """Keeps the last result. Made by `application`, one a process. clock: monotonic seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._items: list[Item] | None = None
        self._taken = self._next = -float("inf")
        self._running: asyncio.Task[None] | None = None
        self.away: Away | None = None
        """Why the last query failed, if the database did not answer it."""

    def strip(self) -> dict[str, Any]:
        """Return the variables of the strip's template. `attention` is None if nothing is known."""
        if self._items is None or self._clock() - self._taken >= STALE:
            return {"attention": None}
        return {
            "attention": [
                (item, urlencode(item.query, doseq=True), {"schedule": item.schedule} if item.schedule else {})
                for item in self._items
            ]
        }

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
        self.away = None
        try:
            self._items = attention(await self._database.rows("observe/list_attention", PARAMETERS))
            self._taken = self._clock()
        except Away as away:
            self.away = away
        except psycopg.Error as problem:
            log.warning("page: what needs attention could not be queried (%s)", error_name(problem))
        finally:
            self._running = None
            if self._next == float("inf"):  # else an action came in between
                ended = self._clock()
                self._next = ended + max(PERIOD, EASE * (ended - started))


class Strip:
    """The middleware that has the strip's result ready before a page is rendered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refresh the result before a page, and again after a change."""
        if scope["type"] == "http":
            kept = scope["app"].state.attention
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if scope["method"] not in SAFE:
                try:
                    await self._app(scope, receive, send)
                finally:
                    kept.forget()
                return
            if not path.startswith(_WITHOUT):
                await kept.refresh()
        await self._app(scope, receive, send)


async def _ask(app: Starlette, _database: Database, _argument: str) -> Mapping[str, object]:
    kept = app.state.attention
    await kept.refresh()
    if kept.away is not None:  # otherwise the browser would believe that the database is back
        raise kept.away
    strip: dict[str, Any] = kept.strip()
    return strip


def topics_of(app: Starlette) -> tuple[Topic, ...]:
    """Return the live topic of the strip."""
    return (Topic("attention", "_attention.html", partial(_ask, app), every=PERIOD),)
