"""Shared by the pools of both clients: settings, errors of connecting, dead sessions, exit."""

from __future__ import annotations

import atexit
import contextlib
import logging
import select
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias
from weakref import WeakSet

import psycopg
import psycopg_pool

from jobherd import sql
from jobherd.handlers._enqueue.answer_deadline import SilentError
from jobherd.handlers._enqueue.dsn import find_dsn, redact_dsn, session_of
from jobherd.handlers._enqueue.send import arun_on, run_on
from jobherd.handlers._enqueue.statements import disable_jit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._enqueue.statements import Row

Pool: TypeAlias = "psycopg_pool.ConnectionPool[psycopg.Connection[Row]]"
AsyncPool: TypeAlias = "psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[Row]]"

UNANSWERED: Final = (SilentError, psycopg.errors.ConnectionTimeout, psycopg_pool.PoolTimeout)
"""Raised if a session does not answer, or if none is available in time."""
_open: WeakSet[Closable] = WeakSet()
ended = False
"""True once the interpreter exits: pools are closed, and a pool cannot start threads any more."""
left_behind: list[object] = []
"""Pools of a parent process, kept forever: collecting one would try to end threads that do not
exist here."""


# Without a handler, an application without logging would print several lines to standard error for
# each attempt to connect. The failing call reports the same error.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Closable(Protocol):
    """An object that has a pool."""

    def close(self) -> None:
        """Close the pool."""


def close_at_exit(client: Closable) -> None:
    """Close the client's pool when the interpreter exits.

    From CPython 3.13 on, an open pool delays the exit by 10 s.
    """
    _open.add(client)


@atexit.register
def _close_all() -> None:
    global ended
    ended = True
    for client in list(_open):
        client.close()


class PoolSettings(NamedTuple):
    """Settings of a client's pool."""

    dsn: str | None
    min_size: int
    max_size: int
    timeout: float
    """Longest wait for a connection, in seconds."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of psycopg's pool. Looks the address up."""
        dsn = find_dsn(self.dsn)
        return {
            "conninfo": dsn,
            "kwargs": session_of(dsn),
            "min_size": self.min_size,
            "max_size": self.max_size,
            "timeout": self.timeout,
            "num_workers": 1,
            "open": False,
            "name": "jobherd",
        }

    def within(self, seconds: float | None) -> float:
        """Return the longest wait for a session. seconds: a shorter one, if any."""
        return self.timeout if seconds is None else min(seconds, self.timeout)


class Tries:
    """Why a pool's last attempt to connect failed.

    The pool logs the reason; its callers only get a timeout.

    failed: message of the server or the network; None if the pool could connect.
    """

    def __init__(self) -> None:
        self.failed: str | None = None

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record whether the block connects."""
        try:
            yield
        except psycopg.Error as problem:
            self.failed = redact_dsn(" ".join(str(problem).split()))
            raise type(problem)(self.failed) from None  # the pool logs this error
        self.failed = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add the reason to the timeout error if the block gets no connection."""
        try:
            yield
        except psycopg_pool.PoolTimeout as problem:
            if self.failed is None:
                raise  # all connections are in use
            message = f"{problem}: {self.failed}"
            raise psycopg_pool.PoolTimeout(message) from None

    def connections(self) -> type[psycopg.Connection[Any]]:
        """Return the connection class for a pool."""
        tries = self

        class Noted(psycopg.Connection[Any]):
            @classmethod
            def connect(cls, conninfo: str = "", **given: Any) -> Self:
                with tries.recorded():
                    return super().connect(conninfo, **given)

        return Noted

    def aconnections(self) -> type[psycopg.AsyncConnection[Any]]:
        """Return the connection class for an asynchronous pool."""
        tries = self

        class Noted(psycopg.AsyncConnection[Any]):
            @classmethod
            async def connect(cls, conninfo: str = "", **given: Any) -> Self:
                with tries.recorded():
                    return await super().connect(conninfo, **given)

        return Noted


class Sessions:
    """The sessions of an asynchronous pool, closed here once its event loop is closed.

    The pool itself cannot close them then.
    """

    def __init__(self) -> None:
        self._open: WeakSet[psycopg.AsyncConnection[Row]] = WeakSet()

    async def note(self, connection: psycopg.AsyncConnection[Row]) -> None:
        """Record a session of the pool, and prepare it as `prepare_nothing_on_others` does."""
        self._open.add(connection)
        promised = connection.info.backend_pid
        if await arun_on(connection, disable_jit(promised), schema=sql.SCHEMA) != promised:
            connection.prepare_threshold = None

    def end(self) -> None:
        """Close all sessions, without waiting."""
        for connection in list(self._open):
            connection.pgconn.finish()


def prepare_nothing_on_others(connection: psycopg.Connection[Row]) -> None:
    """Prepare no statement through a pooler, and disable compilation without one.

    The pooler may send the next statement to another backend, which does not have the prepared
    statement or has another client's under that name.
    """
    promised = connection.info.backend_pid
    if run_on(connection, disable_jit(promised), schema=sql.SCHEMA) != promised:
        connection.prepare_threshold = None


def notice_the_end(connection: psycopg.Connection[Row]) -> None:
    """Raise OperationalError if the server has ended the session.

    Makes a round trip only if the socket has data or is closed.
    """
    if _has_news(connection.pgconn.socket):
        psycopg_pool.ConnectionPool.check_connection(connection)


async def anotice_the_end(connection: psycopg.AsyncConnection[Row]) -> None:
    """Like `notice_the_end`."""
    if _has_news(connection.pgconn.socket):
        await psycopg_pool.AsyncConnectionPool.check_connection(connection)


def _has_news(socket: int) -> bool:
    poll = select.poll()  # select() rejects file descriptors beyond 1023
    poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
