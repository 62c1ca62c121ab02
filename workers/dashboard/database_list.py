"""The databases of a dashboard over several: name, path, and the figures of the first page.

An id names its database if `jobherd migrate --shard 2/4` has numbered the databases.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobherd.handlers._enqueue.shards import shard_of
from jobherd.workers.dashboard.query_cache import CachedQuery
from jobherd.workers.dashboard.render import link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request

    from jobherd.workers.dashboard.database import Database, Row

COUNTED: Final = 10_000
"""Jobs of a state that are counted."""


class Figures(NamedTuple):
    """What the first page shows of a database. shard: its number; 0: none."""

    shard: int
    counts: Sequence[Row]


class ListedDatabase:
    """One of the databases. mount: its path below the dashboard. app: its own dashboard."""

    def __init__(self, name: str, mount: str, app: Starlette) -> None:
        self.name = name
        self.mount = mount
        self.app = app
        data: Database = app.state.database

        async def ask() -> Figures:
            [first] = await data.rows("observe/show_shard")
            return Figures(first["shard"], await data.rows("dashboard/count_states", {"most": COUNTED}))

        self.figures = CachedQuery(ask, "the number of jobs")

    def link(self, name: str, **params: Any) -> str:
        """Return the path of a page of this database, below that of the dashboard."""
        return self.mount + link(self.app, name, **params)

    async def refresh(self) -> None:
        """Query what the first page shows, for a limited time."""
        await asyncio.gather(self.figures.refresh(), self.app.state.attention.refresh())


async def database_of_job(request: Request, job_id: int) -> ListedDatabase | None:
    """Return the database that gave this id. None if it is not known: it has no number, or does not answer."""
    listed: Sequence[ListedDatabase] = request.app.state.databases
    await asyncio.gather(*(one.figures.refresh() for one in listed if one.figures.last is None))
    numbers = {one.figures.last.shard: one for one in listed if one.figures.last}
    return numbers.get(shard_of(job_id))
