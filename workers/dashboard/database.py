"""The dashboard's only access to PostgreSQL: named statements on few, short-lived sessions.

There is no session while no page is open. Every read is a read-only transaction of at most
`STATEMENT` seconds, which the server ends. If the database is away, that is logged once and raised
as `Away`, with the time since when. The next request tries again. Errors are logged by class only:
their text can quote a row or the DSN.
"""

from __future__ import annotations

import asyncio
import logging
import select
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.workers.database.errors import error_name, is_disconnected, takes_no_writes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import HTTPConnection

log = logging.getLogger("jobherd.dashboard")

STATEMENT: Final = 2.0
"""Seconds that a statement may take."""
SESSIONS: Final = 4
"""Maximum number of sessions. `IDLE` seconds after the last page was closed there is none."""
IDLE: Final = 30.0
"""Seconds after which an idle session is closed."""
PATIENCE: Final = 3.0
"""Seconds to wait for a session; after that the database counts as away."""
_SESSION: Final[dict[str, Any]] = {
    "application_name": "jobherd page",
    "connect_timeout": "3",
    # A network that drops packets must not block a page for the kernel's 15 minutes.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "8000",
}

Row: TypeAlias = dict[str, Any]
Connection: TypeAlias = psycopg.AsyncConnection[Row]


class Away(Exception):  # noqa: N818 - says what happened
    """The database does not answer. since: the first failure."""

    def __init__(self, since: datetime) -> None:
        super().__init__("the database does not answer")
        self.since = since


class _JsonText(TextLoader):
    """Load JSON as text.

    psycopg's own loader raises for documents that Python cannot hold, and then the job could not be
    shown.
    """


class Reading:
    """Runs statements in one transaction. Raises as `Database.rows`; after that, no more can be run."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def rows(self, name: str, parameters: Mapping[str, object] | None = None) -> list[Row]:
        """Run a statement, and return its rows by column name."""
        cursor = await self._connection.execute(sql.load(name, self._schema).encode(), parameters or {})
        return await cursor.fetchall() if cursor.description else []

    async def row(self, name: str, parameters: Mapping[str, object] | None = None) -> Row | None:
        """Run a statement, and return its first row, or None."""
        found = await self.rows(name, parameters)
        return found[0] if found else None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reading]:
        """Return this: the transaction stays open."""
        yield self


class Database:
    """Run the statements of `sql/queries`.

    Made by `application`, one a process; `database(request)` returns it. dsn, schema: the database.
    Opens no session before the first statement.
    """

    def __init__(self, dsn: str, schema: str = sql.SCHEMA) -> None:
        self.schema = schema
        self.away_since: datetime | None = None
        """Time of the first failure; None while the database answers."""
        self._dsn = dsn
        self._room = asyncio.Semaphore(SESSIONS)
        self._idle: list[Connection] = []
        self._ending: asyncio.TimerHandle | None = None
        self._closed = False

    async def rows(
        self,
        name: str,
        parameters: Mapping[str, object] | None = None,
        *,
        before: tuple[str, Mapping[str, object]] | None = None,
    ) -> list[Row]:
        """Run a statement that only reads, and return its rows by column name.

        JSON is returned as text (`redaction` parses it). name: below sql/queries, such as
        "dashboard/list_jobs". before: a statement with its parameters to run first in the same
        transaction, to control the plan or the time; default none.
        Raises Away, or psycopg.Error if the server rejects the statement:
        psycopg.errors.QueryCanceled if it took too long.

        >>> await database(request).rows("dashboard/list_jobs", {"most": 50})  # doctest: +SKIP
        """
        return await self._send(name, parameters, read_only=True, before=before)

    async def row(self, name: str, parameters: Mapping[str, object] | None = None) -> Row | None:
        """Run a statement that only reads, and return its first row, or None. Raises as `rows`."""
        found = await self.rows(name, parameters)
        return found[0] if found else None

    def reading(self) -> AbstractAsyncContextManager[Reading]:
        """Begin a transaction for several statements that only read: all those of a page.

        Cost: a separate transaction has three more round trips, and its settings cost more than most statements.
        Deadlock: what runs within it must use the `Reading`, and not this `Database`, which can be out of sessions.

        >>> async with database(request).reading() as reading:  # doctest: +SKIP
        ...     rows = await reading.rows("dashboard/list_kinds", {"seconds": 3600, "most": 300})
        """
        return self._transaction(read_only=True)

    async def act(self, name: str, parameters: Mapping[str, object] | None = None) -> list[Row]:
        """Run a statement that changes data, in its own transaction, and return its rows.

        Raises as `rows`. After Away it is unknown whether it was committed.
        """
        return await self._send(name, parameters, read_only=False)

    async def close(self) -> None:
        """Close all sessions, now and when they are returned.

        A site that mounts the application may call this when it shuts down.
        """
        self._closed = True
        await self._end_idle()

    async def _end_idle(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _send(
        self,
        name: str,
        parameters: Mapping[str, object] | None,
        *,
        read_only: bool,
        before: tuple[str, Mapping[str, object]] | None = None,
    ) -> list[Row]:
        async with self._transaction(read_only=read_only) as run:
            if before:
                await run.rows(*before)
            return await run.rows(name, parameters)

    @asynccontextmanager
    async def _transaction(self, *, read_only: bool) -> AsyncIterator[Reading]:
        async with self._session() as connection:
            await connection.set_read_only(read_only)
            async with connection.transaction():
                run = Reading(connection, self.schema)
                limit = {"milliseconds": round(STATEMENT * 1000), "reads": read_only}
                await run.rows("session/set_statement_timeout", limit)
                yield run

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """Borrow a session: an idle one, else a new one.

        Raises Away if there is none, or if it breaks.
        """
        async with self._room:
            try:
                async with self._lent() as connection:
                    yield connection
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                if not (is_disconnected(problem) or takes_no_writes(problem)):
                    raise
                if self.away_since is None:
                    self.away_since = datetime.now(UTC)
                    log.warning(
                        "the dashboard's database does not answer (%s); each request tries again",
                        error_name(problem),
                    )
                raise Away(self.away_since) from None
            if self.away_since is not None:
                self.away_since = None
                log.info("the dashboard's database is back")

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        connection = None
        while self._idle and connection is None:
            connection = self._idle.pop()
            if _has_ended(connection):
                await connection.close()
                connection = None
        if connection is None:
            connection = await self._connect()
        try:
            yield connection
        finally:
            if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE and not self._closed:
                self._idle.append(connection)
                self._end_later()
            # broken, or the request was canceled in a statement; or this Database is closed, and no
            # timer would end the session
            else:
                await connection.close()

    async def _connect(self) -> Connection:
        options = {**_SESSION, **conninfo_to_dict(self._dsn), "client_encoding": "UTF8"}
        try:
            async with asyncio.timeout(PATIENCE):  # connect_timeout does not include the name lookup
                connection = await psycopg.AsyncConnection[Row].connect(
                    "",
                    row_factory=dict_row,
                    autocommit=True,
                    prepare_threshold=None,  # a pooler in transaction mode would lose prepared statements
                    context=OURS,
                    **options,
                )
        except TimeoutError:
            raise psycopg.OperationalError from None
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, _JsonText)
        try:
            await connection.execute(
                sql.load("session/disable_idle_timeout"), {"promised": connection.info.backend_pid}
            )
        except BaseException:  # the request was canceled: no other code has this session
            await connection.close()
            raise
        return connection

    def _end_later(self) -> None:
        """Close the idle sessions once none was used for `IDLE` seconds."""
        if self._ending is not None:
            self._ending.cancel()
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(IDLE, lambda: loop.create_task(self._end_idle()))


def database(request: HTTPConnection) -> Database:
    """Return the application's database."""
    found = request.app.state.database
    assert isinstance(found, Database)
    return found


def _has_ended(connection: Connection) -> bool:
    """Whether the server has ended an idle session.

    The end is already in the socket, so no round trip is needed.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))  # no query is pending: readable data can only be the end
