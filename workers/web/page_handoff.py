"""Serves the dashboard on the same port: hands its connections to uvicorn, with what was read.

The small server stays in front with its limits. A client that sends no request within them never
gets here. Health and metrics are answered as they are without the extra `web`. Nothing of the
dashboard or of uvicorn is imported before the first connection requests it: an unused dashboard
costs nothing. Access control is the dashboard's own part (`jobherd.workers.dashboard.guard`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from contextlib import suppress
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from jobherd.workers.system.local_address import is_local
from jobherd.workers.web.http_message import TWO_LENGTHS, Refused, Request, has_two_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.web.http_message import Answer
    from jobherd.workers.web.server import Server

log = logging.getLogger("jobherd")

NEEDED: Final = ("starlette", "uvicorn", "jinja2")
"""The packages that the extra `web` installs."""
CONNECTIONS: Final = 300
"""Most connections at a time.

A new one displaces the oldest one without a token, else the one that has been idle for longest. If
there is none, uvicorn answers the new one with 503.
"""
STRANGERS: Final = 20
"""Most connections of one address without a token. One more displaces the oldest of them."""
KEPT: Final = 20
"""Seconds for which a connection without a request is kept."""
TAKING: Final = 30_000
"""Milliseconds after which the kernel closes a connection whose client reads nothing.

Until then its unsent data stays in memory.
"""
ENDING: Final = 1.0
"""Seconds that open responses have to end when the process exits."""


class PageSettings(Protocol):
    """The settings about the dashboard: those of a child process, or of the command `dashboard`."""

    @property
    def schema(self) -> str: ...
    @property
    def http(self) -> tuple[str, int] | None: ...
    @property
    def dashboard(self) -> bool: ...
    @property
    def dashboard_view_token(self) -> tuple[str, ...]: ...
    @property
    def dashboard_operate_token(self) -> tuple[str, ...]: ...
    @property
    def dashboard_hosts(self) -> tuple[str, ...]: ...
    @property
    def dashboard_path(self) -> str: ...
    @property
    def dashboard_read_only(self) -> bool: ...


def why_off(settings: PageSettings) -> str:
    """Return why there is no dashboard, as a sentence; empty if there is one."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        return "The dashboard is not installed: pip install 'jobherd[web]'."
    if not settings.dashboard:
        return "The dashboard is off: setting dashboard."
    assert settings.http is not None
    if not (is_local(settings.http[0]) or settings.dashboard_view_token or settings.dashboard_operate_token):
        return "The dashboard is off: other hosts can reach it and it has no token. Set dashboard_operate_token."
    return ""


class Hosting:
    """Serves the dashboard on connections that `server` has accepted.

    Args:
        make: returns the dashboard. Called for the first connection.
        path: path below which a proxy serves the dashboard.
        server: answers its own paths on a connection that is kept open.
    """

    def __init__(self, make: Callable[[], Starlette], path: str, server: Server) -> None:
        self._make = make
        self._path = path
        self._server = server
        self._app: Starlette | None = None
        self._protocol: Any = None
        self._state: Any = None

    async def take(self, connection: socket.socket, read: bytes) -> None:
        """Serve this connection from now on. The caller may close its own socket.

        Args:
            connection: the accepted connection.
            read: the bytes already read from it.
        """
        if self._app is None:
            self._begin()
        self._make_room(connection)
        own = connection.dup()
        try:
            own.setblocking(False)
            with suppress(OSError):
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKING)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._protocol(read), own)
        except BaseException:
            own.close()
            raise

    def _make_room(self, connection: socket.socket) -> None:
        """Close a connection to free its place: slow or silent clients must not keep others out."""
        there = [each for each in self._state.connections if not each.transport.is_closing()]
        strangers = sorted((each for each in there if not each.is_known), key=lambda each: each.number)
        address = _peer(connection)
        near = [each for each in strangers if each.address == address]
        idle = sorted((each for each in there if each.is_idle), key=lambda each: each.number)
        if len(near) >= STRANGERS:
            near[0].transport.abort()
        elif len(there) >= CONNECTIONS and (strangers or idle):
            (strangers or idle)[0].transport.abort()

    async def close(self) -> None:
        """End all responses, also streams, and close the dashboard's database connections."""
        if self._app is None:
            return
        parts = self._app.state.parts
        asking = {task for part in parts for task in part.state.hub.close()}
        if tasks := {*self._state.tasks, *asking}:
            await asyncio.wait(tasks, timeout=ENDING)
        for protocol in list(self._state.connections):
            protocol.transport.abort()
        await asyncio.gather(*(part.state.database.close() for part in parts if part.state.database))

    def _begin(self) -> None:
        import uvicorn  # noqa: PLC0415 - imported at the first request
        from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415
        from uvicorn.server import ServerState  # noqa: PLC0415

        self._app = self._make()
        config = uvicorn.Config(
            _beside(self._app, self._server),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client that may claim another address could claim to be on this host
            root_path=self._path,
            limit_concurrency=CONNECTIONS + 1,
            timeout_keep_alive=KEPT,
        )
        config.load()
        # It logs every early disconnect; the guard logs failures of the dashboard.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        state = self._state = ServerState()
        numbers = itertools.count()

        class Continued(H11Protocol):
            """A connection of which some bytes were read before."""

            def __init__(self, read: bytes) -> None:
                super().__init__(config=config, server_state=state, app_state={"connection": self})
                self._read = read
                self.is_known = False
                """Whether its latest request was authorized."""
                self.number = 0
                self.address: str | None = None

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                self.address = self.client[0] if self.client else None
                self.number = next(numbers)
                self.data_received(self._read)

            def on_response_complete(self) -> None:
                # The connection that has been idle for longest has the lowest number.
                self.number = next(numbers)
                super().on_response_complete()

            @property
            def is_idle(self) -> bool:
                return self.cycle is None or self.cycle.response_complete

        self._protocol = Continued


def make_page(settings: PageSettings, databases: Mapping[str, str], boards: Sequence[StatusBoard] = ()) -> Starlette:
    """Return the dashboard of one database, or of several: addresses by name. boards: see `application`."""
    from jobherd.workers.dashboard import application  # noqa: PLC0415 - imported at the first request
    from jobherd.workers.dashboard.databases import application_of  # noqa: PLC0415 - as above

    options: dict[str, Any] = {
        "schema": settings.schema,
        "view_tokens": settings.dashboard_view_token,
        "operate_tokens": settings.dashboard_operate_token,
        "hosts": settings.dashboard_hosts,
        "read_only": settings.dashboard_read_only,
    }
    if len(databases) > 1:
        return application_of(databases, **options)
    [dsn] = databases.values()
    return application(dsn, boards=boards, **options)


def _beside(page: Starlette, server: Server) -> ASGIApp:
    """Return an application: the server answers its own paths, the dashboard everything else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            names = {name.decode("latin-1") for name, _ in scope["headers"]}
            if has_two_lengths(names, scope["http_version"].removeprefix("1.")):
                await _send(
                    Refused(HTTPStatus.BAD_REQUEST, TWO_LENGTHS, ("Connection", "close")).answer, send, head_only=False
                )
                return
        if scope["type"] != "http" or not server.knows(scope["path"]) or scope["method"] not in {"GET", "HEAD"}:
            await _serve_page(page, scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            answer = await server.answer(
                Request(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers)
            )
        except Refused as refused:
            answer = refused.answer
        await _send(answer, send, head_only=scope["method"] == "HEAD")

    return app


async def _serve_page(page: Starlette, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the dashboard answer. Close the connection afterwards if the request was not authorized.

    Such a connection must not occupy a place.
    """
    state = scope.get("state", {})
    connection = state.get("connection")

    def is_known() -> bool:
        viewer = state.get("viewer")
        return viewer is not None and viewer.way != "none"

    async def received() -> Message:
        connection.is_known = is_known()  # also before it reads the body of a form
        return await receive()

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            connection.is_known = is_known()
            if not connection.is_known:
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
        await send(message)

    await (page(scope, received, sent) if connection is not None else page(scope, receive, send))


async def _send(answer: Answer, send: Send, *, head_only: bool) -> None:
    fields = [("content-type", answer.content_type), ("content-length", str(len(answer.body))), *answer.all_headers()]
    headers = [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head_only else answer.body})


def _peer(connection: socket.socket) -> str | None:
    with suppress(OSError, IndexError):
        return str(connection.getpeername()[0])
    return None
