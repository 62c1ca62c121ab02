"""Assembles the dashboard: routes and topics of its modules, the guard, and the error pages."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import psycopg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from jobherd import sql
from jobherd.workers.dashboard import (
    attention,
    audit,
    bulk,
    chart_table,
    enqueue,
    errors,
    event_stream,
    fleet,
    flows,
    job,
    job_signal,
    jobs,
    kinds,
    live_updates,
    login,
    overview,
    profile,
    queues,
    schedule_edit,
    schedule_payload,
    schedules,
    search_redirect,
)
from jobherd.workers.dashboard.access import Keys
from jobherd.workers.dashboard.access_log import AccessLog
from jobherd.workers.dashboard.actions import sentence_of
from jobherd.workers.dashboard.database import STATEMENT, Away, Database
from jobherd.workers.dashboard.guard import Guard
from jobherd.workers.dashboard.login_limits import LoginLimits
from jobherd.workers.dashboard.redaction import Redactions
from jobherd.workers.dashboard.render import HERE, page
from jobherd.workers.dashboard.request import Refused, Rules
from jobherd.workers.dashboard.sessions import Sessions
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Lifespan, Scope

    from jobherd.workers.dashboard.request import Actor, Authorize
    from jobherd.workers.ipc.status_board import StatusBoard

__all__ = ["application"]

log = logging.getLogger("jobherd.dashboard")

PAGES: Final = (
    overview,
    chart_table,
    jobs,
    job,
    job_signal,
    enqueue,
    profile,
    fleet,
    queues,
    flows,
    schedules,
    schedule_edit,
    schedule_payload,
    kinds,
    errors,
    audit,
    search_redirect,
    login,
    event_stream,
)
"""The modules of pages. Each has `routes`; a live one also has `topics`."""


def application(
    dsn: str,
    *,
    schema: str = sql.SCHEMA,
    authorize: Authorize | None = None,
    actor: Actor | None = None,
    view_tokens: Sequence[str] = (),
    operate_tokens: Sequence[str] = (),
    hosts: Sequence[str] = (),
    read_only: bool = False,
    boards: Sequence[StatusBoard] = (),
) -> Starlette:
    """Return the dashboard as an ASGI application, to serve alone or to mount in another site.

    dsn, schema: the database of the queue. No session is opened before the first request.
    authorize: called with each request, sync or async; returns `Role.VIEW`, `Role.OPERATE` or None
        (403). It replaces the tokens: your own authentication must run before it.
    actor: returns the name of the acting user, for the audit log; default "site".
    view_tokens, operate_tokens: secrets of 16 to 200 characters, each optionally with a name before
        it (`alice=...`).
    hosts: the host names of the dashboard, in addition to those of the machine itself. With tokens
        and no hosts, every name is accepted.
    read_only: nothing can be changed, whatever the role.
    boards: status boards of the supervisor on this host, to show what its jobs log while they run;
        default none.

    Without `authorize` and tokens it answers only requests from this host. Raises ValueError for a
    token that is too short.

    >>> page = application("postgresql://jobs", operate_tokens=["alice=correct-horse-battery"])
    >>> page.url_path_for("job", id=17)
    '/jobs/17'
    """
    rules = Rules(
        Keys(tuple(view_tokens), tuple(operate_tokens)),
        frozenset(host.lower() for host in hosts),
        authorize,
        actor,
        read_only,
    )
    app = site(
        [route for module in PAGES for route in module.routes], rules, Middleware(attention.Strip), lifespan=_lifespan
    )
    app.state.database = Database(dsn, schema)
    app.state.attention = attention.Attention(app.state.database)
    app.state.access_log = AccessLog(app.state.database)
    app.state.sessions = Sessions(app.state.database, rules.keys, shared=not rules.is_open)
    app.state.login_limits = LoginLimits()
    app.state.redactions = Redactions()
    app.state.boards = tuple(boards)
    app.state.bulks = bulk.Runner(app.state.database, enabled=not read_only)
    topics = [topic for module in PAGES for topic in getattr(module, "topics", ())]
    app.state.parts = (app,)
    app.state.hub = live_updates.Hub(app, app.state.database, [*topics, *job.topics_of(app), *attention.topics_of(app)])
    return app


def site(
    routes: Sequence[BaseRoute], rules: Rules, *middleware: Middleware, lifespan: Lifespan[Starlette] | None = None
) -> Starlette:
    """Return an application with the guard, the files and the error pages of the dashboard.

    middleware: more of it, inside the guard.
    """
    app = Starlette(
        routes=[*routes, Mount("/static", _Static(directory=str(HERE / "static")), name="static")],
        middleware=[
            Middleware(Guard, rules=rules, broken=_broken),
            # No event stream is compressed. The sizes of answers do not give away the token of a form: a request of
            # another site comes without the cookies that the token depends on.
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
            *middleware,
        ],
        exception_handlers={
            Refused: _refused,
            Away: _away,
            psycopg.Error: _trouble,
            HTTPException: _missing,
        },
        lifespan=lifespan,
    )
    app.state.rules = rules
    app.state.mount, app.state.databases = "", ()  # of several databases: `databases.py`
    return app


class _Static(StaticFiles):
    """Files whose address changes with their content: a browser may cache them permanently."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if answer.status_code == HTTPStatus.OK:
            answer.headers["Cache-Control"] = (
                "private, max-age=31536000, immutable" if scope["query_string"] else "no-cache"
            )
        return answer


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    resuming = asyncio.create_task(app.state.bulks.resume())
    try:
        yield
    finally:
        resuming.cancel()
        app.state.hub.close()
        await app.state.bulks.close()
        await app.state.access_log.close()
        await app.state.database.close()


# -- error pages


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Refused)
    answer = _say(request, problem.status, "Request rejected", problem.reason)
    answer.headers.update(problem.headers)
    return answer


async def _away(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Away)
    answer = _say(request, HTTPStatus.SERVICE_UNAVAILABLE, "The database does not answer", since=problem.since)
    answer.headers["Refresh"] = "5"
    answer.headers["Retry-After"] = "5"
    return answer


async def _trouble(request: Request, problem: Exception) -> Response:
    if isinstance(problem, psycopg.errors.QueryCanceled):
        return _say(
            request,
            HTTPStatus.GATEWAY_TIMEOUT,
            "The query took too long",
            f"PostgreSQL canceled the query after {STATEMENT:g} s. Narrow the filter.",
        )
    assert isinstance(problem, psycopg.Error)
    # a traceback would quote the row
    log.error(
        "%s: the database rejected a statement (%s): %s", request.url.path, error_name(problem), sentence_of(problem)
    )
    if isinstance(
        problem, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedColumn
    ):
        reason = (
            "The database's schema is not the one of this version. "
            "Run `jobherd migrate`, or start a supervisor of this version."
        )
        return _say(request, HTTPStatus.INTERNAL_SERVER_ERROR, "The schema has another version", reason)
    return _say(
        request,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "PostgreSQL rejected the query",
        f"The error is {error_name(problem)}; the supervisor's log has the details.",
    )


async def _missing(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    if problem.status_code == HTTPStatus.NOT_FOUND:
        return _say(
            request,
            problem.status_code,
            "There is nothing here",
            "The address is wrong, or the job or supervisor does not exist any more.",
        )
    answer = _say(request, problem.status_code, "Request rejected", f"{HTTPStatus(problem.status_code).phrase}.")
    answer.headers.update(problem.headers or {})
    return answer


async def _broken(request: Request, problem: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=problem)
    return _say(
        request,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "Internal error",
        "This is a defect in the dashboard. The supervisor's log has the details.",
    )


def _say(request: Request, status: int, title: str, reason: str = "", **context: object) -> Response:
    return page(request, "error.html", status=status, title=title, reason=reason, **{"since": None, **context})
