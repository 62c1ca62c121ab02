"""The page's only way to PostgreSQL: statements by name, on few sessions, none while nobody looks, and none for long.

Every read is a read-only transaction of at most `STATEMENT` seconds, which the server ends. A database that is away is said once, as
`Away`, with the time since when; the next request tries again. An error is logged by its class alone: its text can quote a row or the DSN.
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
from jobherd.workers.database.errors import takes_no_writes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import HTTPConnection

log = logging.getLogger("jobherd.page")

STATEMENT: Final = 2.0
"""The longest a statement may take, in seconds."""
SESSIONS: Final = 4
"""The most sessions at a time; there is none a while after the last page was closed."""
IDLE: Final = 30.0
"""Seconds after which a session that nobody needs ends."""
PATIENCE: Final = 3.0
"""Seconds after which a database that gives no session counts as away."""
_SESSION: Final[dict[str, Any]] = {
    "application_name": "jobherd page",
    "connect_timeout": "3",
    # A network that swallows packets must not hold a page for the kernel's quarter of an hour.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "8000",
}

Row: TypeAlias = dict[str, Any]
Connection: TypeAlias = psycopg.AsyncConnection[Row]


class Away(Exception):  # noqa: N818 - says what happened
    """The database does not answer. since: the first time it did not."""

    def __init__(self, since: datetime) -> None:
        super().__init__("the database does not answer")
        self.since = since


class _JsonText(TextLoader):
    """Gives JSON as its text. psycopg's own raises for documents that Python cannot hold, and then the job could not be shown."""


class Database:
    """Sends the statements of `sql/queries`. Made by `application`, one a process; `database(request)` finds it.

    dsn, schema: where. Opens nothing before the first statement.
    """

    def __init__(self, dsn: str, schema: str = sql.SCHEMA) -> None:
        self.schema = schema
        self.away_since: datetime | None = None
        """When it was first found away; None while it answers."""
        self._dsn = dsn
        self._room = asyncio.Semaphore(SESSIONS)
        self._idle: list[Connection] = []
        self._ending: asyncio.TimerHandle | None = None
        self._closed = False

    async def rows(
        self, name: str, parameters: Mapping[str, object] | None = None, *, before: tuple[str, Mapping[str, object]] | None = None
    ) -> list[Row]:
        """Send a statement that reads, and return its rows by column name. JSON comes as text (`redaction` reads it).

        name: below sql/queries, like "page/list_jobs". before: a statement with its parameters that goes first in the same transaction, to tie the
        plan or the time; default none.
        Raises Away, or psycopg.Error if the statement itself is refused: psycopg.errors.QueryCanceled if it took too long.

        >>> await database(request).rows("page/list_jobs", {"most": 50})  # doctest: +SKIP
        """
        return await self._send(name, parameters, read_only=True, before=before)

    async def row(self, name: str, parameters: Mapping[str, object] | None = None) -> Row | None:
        """Send a statement that reads, and return its first row, if there is one. Raises as `rows`."""
        found = await self.rows(name, parameters)
        return found[0] if found else None

    async def act(self, name: str, parameters: Mapping[str, object] | None = None) -> list[Row]:
        """Send a statement that changes something, in a transaction of its own, and return its rows. Raises as `rows`.

        After Away it is not known whether it was committed.
        """
        return await self._send(name, parameters, read_only=False)

    async def close(self) -> None:
        """Let go of all sessions, now and as they come back. A site that mounts the application may call it when it ends."""
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
        statement = sql.load(name, self.schema).encode()
        async with self._session() as connection:
            await connection.set_read_only(read_only)
            async with connection.transaction():
                for steer, given in (("limit_statements", {"milliseconds": round(STATEMENT * 1000)}), *((before,) if before else ())):
                    await connection.execute(sql.load(steer, self.schema).encode(), given)
                cursor = await connection.execute(statement, parameters or {})
                return await cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """Lend a session: one that lies idle, else a new one. Raises Away if it cannot be had, or breaks."""
        async with self._room:
            try:
                async with self._lent() as connection:
                    yield connection
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                if not is_away(problem):
                    raise
                if self.away_since is None:
                    self.away_since = datetime.now(UTC)
                    log.warning("the page's database does not answer (%s); it is asked again with each request", name_of(problem))
                raise Away(self.away_since) from None
            if self.away_since is not None:
                self.away_since = None
                log.info("the page's database is back")

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
            else:  # broken, or whoever waited has left in the middle of a statement; or we are closed, and nobody would end it
                await connection.close()

    async def _connect(self) -> Connection:
        options = {**_SESSION, **conninfo_to_dict(self._dsn), "client_encoding": "UTF8"}
        try:
            async with asyncio.timeout(PATIENCE):  # connect_timeout does not count the time in which the name is looked up
                connection = await psycopg.AsyncConnection[Row].connect(
                    "",
                    row_factory=dict_row,
                    autocommit=True,
                    prepare_threshold=None,  # a pooler in transaction mode would lose what is prepared
                    context=OURS,
                    **options,
                )
        except TimeoutError:
            raise psycopg.OperationalError from None
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, _JsonText)
        try:
            await connection.execute(sql.load("allow_idling"), {"promised": connection.info.backend_pid})
        except BaseException:  # whoever waited has left: nobody else knows of this session
            await connection.close()
            raise
        return connection

    def _end_later(self) -> None:
        """End the idle sessions once none was asked for in `IDLE` seconds."""
        if self._ending is not None:
            self._ending.cancel()
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(IDLE, lambda: loop.create_task(self._end_idle()))


def database(request: HTTPConnection) -> Database:
    """Return the application's database."""
    found = request.app.state.database
    assert isinstance(found, Database)
    return found


def is_away(problem: Exception) -> bool:
    """Whether an error says that the database is not there now, rather than that it does not like the statement."""
    if not isinstance(problem, psycopg.Error):
        return True
    code = problem.sqlstate
    return code is None or code[:2] in {"08", "53"} or code[:3] == "57P" or takes_no_writes(problem)


def name_of(error: BaseException) -> str:
    """Return what may be said of an error of the database in a log: its class, and the server's code if it has one.

    >>> name_of(psycopg.errors.QueryCanceled())
    'QueryCanceled, 57014'
    """
    code = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}, {code}" if code else type(error).__name__


def _has_ended(connection: Connection) -> bool:
    """Whether the server has ended a session that lies idle: its end is in the socket already, so no round trip is needed."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))  # nobody has asked anything: whatever there is to read is the end
