"""Shows on every page what needs attention, from one query for all viewers.

`query_cache.py` limits how often it is queried and how long a page waits. An action ends that, so that the
next page shows its effect. No page is refused because of it. The conditions and their words are in
`workers/inspect/attention.py`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jobherd.workers.dashboard.guard import SAFE
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.query_cache import PERIOD, CachedQuery
from jobherd.workers.inspect.attention import PARAMETERS, attention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from jobherd.workers.dashboard.database import Database
    from jobherd.workers.inspect.attention import Item

_WITHOUT: Final = ("/static/", "/live", "/login")
"""Paths of answers that do not show the strip."""


class Attention(CachedQuery["list[Item]"]):
    """Keeps what needs attention. Made by `application`, one a process. clock: monotonic seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        async def ask() -> list[Item]:
            return attention(await database.rows("observe/list_attention", PARAMETERS))

        super().__init__(ask, "what needs attention", clock)

    def strip(self) -> dict[str, Any]:
        """Return the variables of the strip's template. `attention` is None if nothing is known."""
        if (items := self.fresh()) is None:
            return {"attention": None}
        return {
            "attention": [
                (item, urlencode(item.query, doseq=True), {"schedule": item.schedule} if item.schedule else {})
                for item in items
            ]
        }


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
