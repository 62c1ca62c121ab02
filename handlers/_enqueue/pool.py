"""What the pools of both clients have in common: how a session is made, when one is found dead, and what happens at a fork and at exit."""

from __future__ import annotations

import atexit
import contextlib
import logging
import select
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias
from weakref import WeakSet

import psycopg
import psycopg_pool

from jobherd import sql
from jobherd.handlers._enqueue.answer_deadline import SilentError
from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.handlers._enqueue.options import forgo_compiling
from jobherd.handlers._enqueue.send import arun_on, run_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._enqueue.options import Row

Pool: TypeAlias = "psycopg_pool.ConnectionPool[psycopg.Connection[Row]]"
AsyncPool: TypeAlias = "psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[Row]]"

UNANSWERED: Final = (SilentError, psycopg.errors.ConnectionTimeout, psycopg_pool.PoolTimeout)
"""What it ends with when a session says nothing, or none is to be had in time."""
_open: WeakSet[Closable] = WeakSet()
ended = False
"""The interpreter ends: pools are closed, and a pool can start no thread any more."""
left_behind: list[object] = []
"""Pools of a parent process. Held for ever: collecting one would try to end threads that do not exist here."""


# An application without logging would get a block of several lines on standard error for each try. The call that fails says the same.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Closable(Protocol):
    """What holds a pool."""

    def close(self) -> None:
        """Close the pool."""


def close_at_exit(client: Closable) -> None:
    """Close the client's pool when the interpreter ends. From CPython 3.13 on, a pool that is left open holds up the end for 10 s."""
    _open.add(client)


@atexit.register
def _close_all() -> None:
    global ended
    ended = True
    for client in list(_open):
        client.close()


class Tries:
    """Why a pool could not connect, the last time it tried: it tells that to a log, and whoever waits only for how long they did.

    failed: what the server or the network said; None if it could.
    """

    def __init__(self) -> None:
        self.failed: str | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note whether the block connects."""
        try:
            yield
        except psycopg.Error as problem:
            self.failed = redact_dsn(" ".join(str(problem).split()))
            raise type(problem)(self.failed) from None  # the pool logs the error that it gets
        self.failed = None

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Have who is lent no connection in the block hear why."""
        try:
            yield
        except psycopg_pool.PoolTimeout as problem:
            if self.failed is None:
                raise  # all are lent
            message = f"{problem}: {self.failed}"
            raise psycopg_pool.PoolTimeout(message) from None

    def connections(self) -> type[psycopg.Connection[Any]]:
        """Return what a pool makes its connections of."""
        tries = self

        class Noted(psycopg.Connection[Any]):
            @classmethod
            def connect(cls, conninfo: str = "", **given: Any) -> Self:
                with tries.noted():
                    return super().connect(conninfo, **given)

        return Noted

    def aconnections(self) -> type[psycopg.AsyncConnection[Any]]:
        """Return what an asynchronous pool makes its connections of."""
        tries = self

        class Noted(psycopg.AsyncConnection[Any]):
            @classmethod
            async def connect(cls, conninfo: str = "", **given: Any) -> Self:
                with tries.noted():
                    return await super().connect(conninfo, **given)

        return Noted


class Sessions:
    """The sessions of an asynchronous pool, to be ended once its event loop is closed and the pool can do so no more."""

    def __init__(self) -> None:
        self._open: WeakSet[psycopg.AsyncConnection[Row]] = WeakSet()

    async def note(self, connection: psycopg.AsyncConnection[Row]) -> None:
        """Note a session that the pool has opened, and make it ready as `prepare_nothing_on_others` does."""
        self._open.add(connection)
        promised = connection.info.backend_pid
        if await arun_on(connection, forgo_compiling(promised), schema=sql.SCHEMA) != promised:
            connection.prepare_threshold = None

    def end(self) -> None:
        """End them all. It waits for nobody."""
        for connection in list(self._open):
            connection.pgconn.finish()


def prepare_nothing_on_others(connection: psycopg.Connection[Row]) -> None:
    """Prepare no statement through a pooler: the next one may be sent to another backend, which does not know it, or knows somebody else's.

    Without one nothing of the session is compiled.
    """
    promised = connection.info.backend_pid
    if run_on(connection, forgo_compiling(promised), schema=sql.SCHEMA) != promised:
        connection.prepare_threshold = None


def notice_the_end(connection: psycopg.Connection[Row]) -> None:
    """Raise OperationalError if the server has ended the session. A round trip is made only when the server has said something."""
    if _has_news(connection.pgconn.socket):
        psycopg_pool.ConnectionPool.check_connection(connection)


async def anotice_the_end(connection: psycopg.AsyncConnection[Row]) -> None:
    """Raise as `notice_the_end` does."""
    if _has_news(connection.pgconn.socket):
        await psycopg_pool.AsyncConnectionPool.check_connection(connection)


def _has_news(socket: int) -> bool:
    poll = select.poll()  # select() refuses file numbers beyond 1023
    poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
