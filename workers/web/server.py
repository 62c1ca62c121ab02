"""A small HTTP server: GET and HEAD, one answer per connection, limits against any client.

It does not know jobs. It rejects a path without a route, or hands the connection on if `beyond` is
set (`page_handoff.py`, the dashboard).

Every connection has limits: bytes of the head, seconds to send the request, seconds to read the
answer. The number of connections is limited too. If all places are taken, a new connection
displaces the oldest, so a client that sends or reads slowly cannot hold a place that others need.
The server does not read what follows the head. On a loopback address it answers only for its own
host names: otherwise a website whose name resolves to 127.0.0.1 could read from here through the
visitor's browser.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from jobherd.workers.system.local_address import host_of, is_loopback
from jobherd.workers.web.http_message import Answer, Refused, parse, path_of, written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jobherd.workers.web.cpu_budget import CpuBudget
    from jobherd.workers.web.http_message import Request

    Route = Callable[[Request], Awaitable[Answer]]
    Beyond = Callable[[socket.socket, bytes], Awaitable[None]]

log = logging.getLogger("jobherd")

BACKLOG: Final = 128
"""Connections that wait to be accepted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection, and of all together. Times in seconds."""

    connections: int = 64
    head: int = 16 * 1024
    asking: float = 5.0
    taking: float = 10.0
    lingering: float = 1.0
    """After the answer: time to read unrequested data. Otherwise a reset overtakes the answer."""
    leftover: int = 256 * 1024
    """Most bytes that are read in this way."""


class Server:
    """Answers requests on one listening socket, which it owns."""

    def __init__(
        self,
        listening: socket.socket,
        routes: Mapping[str, Route],
        *,
        names: frozenset[str] | None,
        budget: CpuBudget,
        limits: Limits | None = None,
    ) -> None:
        """Prepare to serve.

        The attribute `beyond` can be set: it is called with each connection that requests another
        path, and the bytes read from it.

        Args:
            listening: the listening socket.
            routes: by path.
            names: hosts to answer for besides localhost and loopback addresses; None: any Host
                header.
            budget: limits the processor time.
            limits: of connections.
        """
        self.beyond: Beyond | None = None
        self._listening = listening
        self._routes = routes
        bound = listening.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if listening.family == socket.AF_INET6 else f"{bound[0]}:{bound[1]}"
        """Host and port, as in the address of a page."""
        self._names = names
        self._budget = budget
        self._limits = limits or Limits()
        self._open: dict[asyncio.Task[None], None] = {}
        self._logged_at = -float("inf")

    async def serve(self) -> None:
        """Answer until canceled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(self._budget.pause())  # also at 0: open connections come before new ones
                try:
                    connection, _ = await loop.sock_accept(self._listening)
                except ConnectionError:
                    continue
                except OSError as error:  # out of file descriptors or memory: free a place and try again
                    self._log("cannot take a connection", error)
                    self._displace()
                    await asyncio.sleep(0.1)
                    continue
                if len(self._open) >= self._limits.connections:
                    self._displace()
                task = loop.create_task(self._attend(connection))
                self._open[task] = None
                task.add_done_callback(partial(self._leave, connection))
        finally:
            self._listening.close()
            left = list(self._open)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def knows(self, path: str) -> bool:
        """Whether this server answers this path itself."""
        return path in self._routes

    def _displace(self) -> None:
        for oldest in self._open:
            del self._open[oldest]
            oldest.cancel()
            return

    def _leave(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if task.cancelled():
            _reset(connection)
        # Here, not in the task: a task canceled before its first step never reaches its `finally`.
        connection.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("a connection failed", error)

    def _log(self, what: str, error: BaseException) -> None:
        """Log at most once a minute: an error that any client can cause must not fill a disk."""
        now = time.monotonic()
        if now - self._logged_at >= 60:
            self._logged_at = now
            log.error("http: %s: %s", what, type(error).__name__, exc_info=error)

    async def _attend(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        limits = self._limits
        head_only = False
        try:
            try:
                async with asyncio.timeout(limits.asking):
                    read, end = await self._read_head(connection)
                if self.beyond is not None and not self.knows(path_of(read)):
                    await self.beyond(connection, read)
                    return
                request = parse(read[:end])
                head_only = request.method == "HEAD"
                answer = await self.answer(request)
            except Refused as refused:
                answer = refused.answer
            try:
                async with asyncio.timeout(limits.taking):
                    for part in written(answer, head_only=head_only):
                        await loop.sock_sendall(connection, part)
            except TimeoutError:
                _reset(connection)
                return
            connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(limits.lingering):
                taken = 0
                while taken < limits.leftover and (more := await loop.sock_recv(connection, 65536)):
                    taken += len(more)
        except OSError:  # includes TimeoutError: the client is too slow or gone
            return

    async def _read_head(self, connection: socket.socket) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        read = bytearray()
        while True:
            more = await loop.sock_recv(connection, 4096)
            if not more:
                raise ConnectionError
            read += more
            end = read.find(b"\r\n\r\n", max(0, len(read) - len(more) - 3))
            if end >= 0 and end <= self._limits.head:
                return bytes(read), end
            if len(read) > self._limits.head:
                raise Refused(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head is longer than {self._limits.head} bytes"
                )

    async def answer(self, request: Request) -> Answer:
        """Return the answer to a request. Raises Refused."""
        if self._names is not None and (header := request.headers.get("host")) is not None:
            host = host_of(header)
            if not (host in self._names or host == "localhost" or is_loopback(host)):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "this address answers as localhost only; bind another one to be reached by name",
                )
        route = self._routes.get(request.path)
        if route is None:
            raise Refused(HTTPStatus.NOT_FOUND, "not found; see /")
        try:
            return await route(request)
        except Exception as error:
            self._log(f"{request.path} failed", error)
            raise Refused(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the supervisor's log has the details"
            ) from None


async def bind(host: str, port: int) -> socket.socket:
    """Listen on the first address of `host`. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def names_of(listening: socket.socket, host: str) -> frozenset[str] | None:
    """Return the names of a server that listens on `host`. None: any, because other hosts can reach it."""
    return frozenset({host.lower()}) if is_loopback(listening.getsockname()[0]) else None


def _reset(connection: socket.socket) -> None:
    """Make the socket close at once.

    Otherwise the kernel keeps the unread data, megabytes of it, for as long as the client likes.
    """
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
