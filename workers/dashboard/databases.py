"""The dashboard of several databases: a page that lists them, and the dashboard of each below `/db/`.

Each database has its own application, so one that is away delays only its own pages. What concerns
users is common to all: the login, the limits on wrong tokens, the cookies. The secret that signs
them belongs to this process, because no database may be needed to log in.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from jobherd.workers.dashboard import event_stream, live_updates, login
from jobherd.workers.dashboard.access_log import AccessLog
from jobherd.workers.dashboard.application import application, site
from jobherd.workers.dashboard.database_list import ListedDatabase, database_of_job
from jobherd.workers.dashboard.query_cache import PERIOD
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import home_of
from jobherd.workers.dashboard.search_redirect import job_id_of
from jobherd.workers.dashboard.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from starlette.requests import Request

    from jobherd.workers.dashboard.database import Database

_SHARED: Final = ("sessions", "login_limits", "access_log", "databases")
"""Attributes of the state that all applications have in common."""


def application_of(databases: Mapping[str, str], **options: Any) -> Starlette:
    """Return one dashboard for all these databases, as an ASGI application.

    databases: addresses by the name that users see.
    options: as for `application`; they apply to each database.
    """
    listed = [
        ListedDatabase(name, mount, application(databases[name], **options)) for name, mount in _mounts(databases)
    ]
    first = listed[0].app.state
    front = site([*routes, *login.routes, *event_stream.routes], first.rules)
    front.state.database = front.state.attention = None
    front.state.sessions = Sessions(first.database, first.rules.keys, shared=False)
    front.state.login_limits = first.login_limits
    front.state.access_log = AccessLog(*(one.app.state.database for one in listed))
    front.state.databases = tuple(listed)

    async def ask(_database: Database, _argument: str) -> Mapping[str, object]:
        return await _ask(listed)

    front.state.hub = live_updates.Hub(
        front, first.database, [live_updates.Topic("databases", "databases/_live.html", ask, every=PERIOD)]
    )
    for one in listed:
        one.app.state.mount = one.mount
        for name in _SHARED:
            setattr(one.app.state, name, getattr(front.state, name))
    parts = [one.app for one in listed]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part.router.lifespan_context(part))
            yield

    mounts = [*(Mount(one.mount, one.app) for one in listed), Mount("/", front)]
    app = Starlette(routes=mounts, lifespan=lifespan)
    app.state.parts = (front, *parts)
    return app


async def show(request: Request) -> Response:
    """Show the databases: whether each answers, how many jobs it has, what needs attention."""
    return page(request, "databases.html", **await _ask(request.app.state.databases))


async def search(request: Request) -> Response:
    """Redirect the browser to the job, if its id names the database; else show where to search."""
    words = request.query_params.get("q", "").strip()
    number = job_id_of(words)
    if number and (owner := await database_of_job(request, number)) is not None:
        return RedirectResponse(f"{home_of(request)}{owner.link('job', id=number)}", HTTPStatus.SEE_OTHER)
    return page(request, "databases/search.html", words=words)


async def _ask(listed: Sequence[ListedDatabase]) -> dict[str, Any]:
    await asyncio.gather(*(one.refresh() for one in listed))
    return {"databases": listed}


def _mounts(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the path of each database: its name as an address may have it, unique.

    >>> _mounts({"db1/app": "", "db1:app": ""})
    [('db1/app', '/db/db1-app'), ('db1:app', '/db/db1-app-2')]
    """
    found: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        mount = "/db/" + re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")
        found[mount if mount not in found else f"{mount}-{number}"] = name
    return [(name, mount) for mount, name in found.items()]


routes = (Route("/", show, name="overview"), Route("/search", search, name="search"))
