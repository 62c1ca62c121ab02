"""The ways to the database: a synchronous client, an asynchronous one, and the caller's own connection.

Each is a thin shell around the statements of `_enqueue` and the chunks of `_bulk`. On the caller's own connection the job is part of the caller's transaction:
nothing here commits. The clients keep a psycopg pool, opened at the first use. A pool that was opened before a fork belongs to the
parent: the child drops it without a word to the server (closing it would end the parent's sessions) and opens its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from contextvars import ContextVar, Token
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import psycopg
import psycopg_pool
from psycopg.rows import tuple_row
from psycopg.types.string import TextLoader

import sql
from handlers import _bulk, _enqueue, _origin
from handlers._durations import Duration, at_least_zero
from handlers._waiting import Vigil

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import TracebackType

    from handlers._bulk import Chunk
    from handlers._enqueue import Row, Statement

T = TypeVar("T")

Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"
Own: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"
Pool: TypeAlias = "psycopg_pool.ConnectionPool[psycopg.Connection[Row]]"
AsyncPool: TypeAlias = "psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[Row]]"

_JSON_TYPES: Final = ("json", "jsonb")
_SESSION: Final[dict[str, Any]] = {"autocommit": True, "application_name": "jobherd client"}

_left_behind: list[object] = []
"""Pools of a parent process. Held for ever: collecting one would try to end threads that do not exist here."""


class NotConfiguredError(RuntimeError):
    """Nobody said which database to use."""


def find_dsn(dsn: str | None = None) -> str:
    """Return `dsn`, or the environment's JOBHERD_DSN or DATABASE_URL. Raises NotConfiguredError with the remedy."""
    found = dsn or os.environ.get("JOBHERD_DSN") or os.environ.get("DATABASE_URL")
    if not found:
        message = "no database is configured: give dsn='postgresql://user@host/name', or set JOBHERD_DSN or DATABASE_URL"
        raise NotConfiguredError(message)
    return found


def find_listen_dsn(dsn: str | None = None) -> str:
    """Return where one can listen: `dsn`, or of the environment JOBHERD_LISTEN_DSN before the others."""
    return find_dsn(dsn or os.environ.get("JOBHERD_LISTEN_DSN"))


def ready_to_hear(vigil: Vigil) -> list[Statement[None]]:
    """Return what a session has to send before it looks: in this order, or the end of a job may be missed."""
    waited_for = list(vigil.left)
    return [_enqueue.listen_ended(), _enqueue.announce_wait(waited_for), _enqueue.meet_settlements(waited_for)]


def run_on(connection: Connection, statement: Statement[T], *, schema: str | None = None) -> T:
    """Run a statement on the caller's own connection, in the caller's transaction if there is one."""
    # The class by name: the connection's cursor_factory may be one that reads $1, or that keeps its rows on the server.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        _take_json_as_text(cursor)
        if statement.lines is not None:
            with cursor.copy(_text(statement, schema)) as copy:
                copy.write(statement.lines)
            return statement.read([], ())
        cursor.execute(_text(statement, schema), statement.parameters)
        rows = (
            cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
        )  # a pipeline knows no description before its rows
        return statement.read(rows, _names(cursor))


async def arun_on(connection: AsyncConnection, statement: Statement[T], *, schema: str | None = None) -> T:
    """Run a statement on the caller's own asynchronous connection, in the caller's transaction if there is one."""
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        _take_json_as_text(cursor)
        if statement.lines is not None:
            async with cursor.copy(_text(statement, schema)) as copy:
                await copy.write(statement.lines)
            return statement.read([], ())
        await cursor.execute(_text(statement, schema), statement.parameters)
        rows = await cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
        return statement.read(rows, _names(cursor))


def put_on(connection: Connection, chunks: Iterable[Chunk], *, schema: str | None = None) -> list[int]:
    """Put jobs into the queue on the caller's own connection, all or none of them, and return their ids in order."""
    left = iter(chunks)
    ahead = list(islice(left, 2))
    if len(ahead) < 2 and all(chunk.is_one_statement for chunk in ahead):  # the usual case; a chunk is all or nothing by itself
        return _put_one(connection, ahead[0], schema) if ahead else []
    if not connection.autocommit:
        with psycopg.Cursor(connection) as cursor:
            cursor.execute(b"")  # begins the caller's transaction: transaction() would else begin one of its own, and commit it
    ids: list[int] = []
    with connection.transaction():
        for chunk in chain(ahead, left):
            ids += _put_one(connection, chunk, schema)
    return ids


async def aput_on(connection: AsyncConnection, chunks: Iterable[Chunk], *, schema: str | None = None) -> list[int]:
    """Put jobs into the queue on the caller's own asynchronous connection, all or none of them, and return their ids in order."""
    left = iter(chunks)
    ahead = list(islice(left, 2))
    if len(ahead) < 2 and all(chunk.is_one_statement for chunk in ahead):
        return await _aput_one(connection, ahead[0], schema) if ahead else []
    if not connection.autocommit:
        async with psycopg.AsyncCursor(connection) as cursor:
            await cursor.execute(b"")  # see put_on
    ids: list[int] = []
    async with connection.transaction():
        for chunk in chain(ahead, left):
            ids += await _aput_one(connection, chunk, schema)
    return ids


def _put_one(connection: Connection, chunk: Chunk, schema: str | None) -> list[int]:
    chunk = chunk.set_off(_origin.origin(connection.pgconn.db, _known(schema)))
    if not chunk.is_large or _is_pipeline(connection):
        ids = run_on(connection, chunk.statement(), schema=schema)
    else:
        reserved = run_on(connection, chunk.reserve(), schema=schema)
        run_on(connection, chunk.copy(reserved), schema=schema)
        ids = reserved.ids
    if (demands := chunk.demands(ids)) is not None:
        run_on(connection, demands, schema=schema)
    return ids


async def _aput_one(connection: AsyncConnection, chunk: Chunk, schema: str | None) -> list[int]:
    chunk = chunk.set_off(_origin.origin(connection.pgconn.db, _known(schema)))
    if not chunk.is_large or _is_pipeline(connection):
        ids = await arun_on(connection, chunk.statement(), schema=schema)
    else:
        reserved = await arun_on(connection, chunk.reserve(), schema=schema)
        await arun_on(connection, chunk.copy(reserved), schema=schema)
        ids = reserved.ids
    if (demands := chunk.demands(ids)) is not None:
        await arun_on(connection, demands, schema=schema)
    return ids


def _is_pipeline(connection: Connection | AsyncConnection) -> bool:
    """Whether the caller has made a pipeline of it, in which PostgreSQL takes no COPY."""
    return connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF


def enqueue_on(connection: Connection, kind: str, payload: object = None, *, schema: str | None = None, **options: Any) -> int:
    """Put one job into the queue as a part of the transaction of `connection`, and return its id.

    connection: a psycopg connection; nothing is committed here. In autocommit mode the job is there at once.
    schema: where Jobherd lives, default what `configure` was told, or "jobherd". The rest is as in `Client.enqueue`.

    >>> with connection.transaction():  # doctest: +SKIP
    ...     enqueue_on(connection, "mail:receipt", {"order_id": 7})
    42
    """
    return put_on(connection, [_bulk.one_by_name(kind, payload, options)], schema=schema)[0]


def enqueue_many_on(
    connection: Connection, kind: str, payloads: Iterable[object], *, schema: str | None = None, **options: Any
) -> list[int]:
    """Put many jobs into the queue as a part of the transaction of `connection`, all or none, and return their ids in order.

    The parameters are those of `enqueue_on` and `Client.enqueue_many`. If it raises, the caller's transaction is as it was before.

    >>> with connection.transaction():  # doctest: +SKIP
    ...     enqueue_many_on(connection, "mail:receipt", ({"order_id": n} for n in range(3)))
    [42, 43, 44]
    """
    return put_on(connection, _bulk.many_by_name(kind, payloads, options), schema=schema)


async def aenqueue_on(connection: AsyncConnection, kind: str, payload: object = None, *, schema: str | None = None, **options: Any) -> int:
    """`enqueue_on` for an asynchronous psycopg connection."""
    return (await aput_on(connection, [_bulk.one_by_name(kind, payload, options)], schema=schema))[0]


async def aenqueue_many_on(
    connection: AsyncConnection, kind: str, payloads: Iterable[object], *, schema: str | None = None, **options: Any
) -> list[int]:
    """`enqueue_many_on` for an asynchronous psycopg connection."""
    return await aput_on(connection, _bulk.many_by_name(kind, payloads, options), schema=schema)


class Client:
    """Enqueue and look after jobs by name, from threads and plain code. No handler module is imported.

    dsn: where the database is; default the environment's JOBHERD_DSN or DATABASE_URL, looked at when the first statement is sent.
    schema: the schema Jobherd lives in, default "jobherd".
    connection: a psycopg connection of the caller's own: then every job is part of its transaction, and there is no pool.
    min_size, max_size: connections kept and at most open, default 0 and 4.
    timeout: how long to wait for a connection, a span of time, default 30 s.
    Raises ValueError for a schema that cannot be one; NotConfiguredError and psycopg's errors come with the first statement.

    >>> with Client("postgresql:///app") as client:  # doctest: +SKIP
    ...     client.enqueue("mail:receipt", {"order_id": 7}, delay="10m")
    42
    """

    def __init__(  # all but the first by name
        self,
        dsn: str | None = None,
        *,
        schema: str = sql.SCHEMA,
        connection: Connection | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = sql.check_schema(schema)
        self._dsn = dsn
        self._connection = connection
        self._sizes = (min_size, max_size)
        self._timeout = at_least_zero(timeout, field="timeout")
        self._pool: Pool | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def enqueue(self, kind: str, payload: object = None, **options: Any) -> int:  # checked by check_options
        """Put one job into the queue and return its id.

        kind: the handler's name. payload: what it is to be called with, a dict of its parameters; default {}.
        options: queue, priority, delay, run_at, max_attempts, timeout, good_until, tenant, webhook, set_off_by, traceparent, as in
            `Handler.options`; payload_bytes: bytes that reach the handler untouched, beside the payload.
        Raises PayloadError, ValueError or TypeError for what is wrong with them.

        >>> client.enqueue("mail:receipt", {"order_id": 7}, priority=-5)  # doctest: +SKIP
        42
        """
        return self.put([_bulk.one_by_name(kind, payload, options)])[0]

    def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Put many jobs of one kind into the queue, all or none, in one transaction, and return their ids in the order of `payloads`.

        payloads: any iterable, taken chunk by chunk while the transaction is open; only the ids grow with its length.
        options: as in `enqueue`, for all of them.
        Raises what `enqueue` does; a PayloadError has the `index` of the payload.

        >>> client.enqueue_many("mail:receipt", [{"order_id": 7}, {"order_id": 8}])  # doctest: +SKIP
        [42, 43]
        """
        return self.put(_bulk.many_by_name(kind, payloads, options))

    def enqueue_stream(
        self,
        kind: str,
        payloads: Iterable[object],
        *,
        on_chunk: Callable[[list[int]], object] | None = None,
        chunk: int = _bulk.CHUNK,
        **options: Any,
    ) -> int:
        """Put jobs into the queue as they come, each chunk in a transaction of its own, and return how many.

        For iterators of any length: it takes the memory of one chunk. What stands before a payload that is refused, or before an
        error of the iterator's own, is enqueued; nothing from it on. On a connection of the caller's all is part of its transaction.

        on_chunk: is called with the ids of each chunk once it is committed. chunk: jobs of one, 1 to 10,000, default 10,000.
        options: as in `enqueue`, for all of them; a delay is counted from each chunk.
        Raises what `enqueue_many` does.

        >>> client.enqueue_stream("mail:receipt", ({"order_id": n} for n in range(1_000_000)))  # doctest: +SKIP
        1000000
        """
        return _bulk.stream(_bulk.many_by_name(kind, payloads, options, most=chunk), self.put, on_chunk)

    def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None if there is no such job (any more)."""
        return self.run(_enqueue.show_job(job_id))

    def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:
        """Return the job's row once it is completed, failed, cancelled or expired. See `wait_many`.

        timeout: a span of time, default None: for ever. Raises TimeoutError past it, and LookupError if there is no such job.

        >>> client.wait(client.enqueue("mail:receipt", {"order_id": 7}), timeout="1m")["result"]  # doctest: +SKIP
        'sent the receipt of order 7'
        """
        return self.wait_many([job_id], timeout)[job_id]

    def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:
        """Return the rows of these jobs by id, in the order given, once all are completed, failed, cancelled or expired.

        It is told by the database and does not poll; while it waits it holds a connection of its own (JOBHERD_LISTEN_DSN, where the
        database of the environment is behind a pooler). On a connection of the caller's it looks now and then, at last once a second.
        Of a job of which nothing is kept, the row is what it was before its end, with its last state.

        timeout: a span of time for all of them, default None: for ever. Raises TimeoutError past it, which names who is left, and
        LookupError if one of them does not exist.

        >>> [row["state"] for row in client.wait_many([42, 43], timeout="1m").values()]  # doctest: +SKIP
        ['completed', 'failed']
        """
        vigil = Vigil(job_ids, timeout, deaf=self._connection is not None)
        first = vigil.due()
        vigil.found(first, self.run(_enqueue.show_jobs(first)))
        while vigil.left and self._connection is not None:
            time.sleep(vigil.patience())
            due = vigil.due()
            vigil.found(due, self.run(_enqueue.show_jobs(due)))
        if vigil.left:
            vigil.patience()
            with psycopg.connect(find_listen_dsn(self._dsn), **_SESSION) as ears:
                for statement in ready_to_hear(vigil):
                    run_on(ears, statement, schema=self.schema)
                due = list(vigil.left)
                while True:
                    if due:
                        vigil.found(due, run_on(ears, _enqueue.show_jobs(due), schema=self.schema))
                    if not vigil.left:
                        break
                    for note in ears.notifies(timeout=vigil.patience(), stop_after=1):
                        vigil.heard(note.payload)
                    due = vigil.due()
        return vigil.rows()

    def cancel(self, job_id: int) -> str | None:
        """Cancel a job. Returns "cancelled", "cancelling" (it runs and is told), the state it ended in before, or None."""
        return self.run(_enqueue.cancel_job(job_id))

    def retry(self, job_id: int) -> str | None:
        """Run a job again, at once. Returns "ready", "running" if it runs already, or None if there is no such job."""
        return self.run(_enqueue.retry_job(job_id))

    def run(self, statement: Statement[T]) -> T:
        """Send one of this package's statements. For handlers and tests there are the methods above."""
        with self._session() as connection:
            return run_on(connection, statement, schema=self.schema)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Put jobs of this package's making into the queue, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # what is wrong with a payload needs no database to be told
        with self._session() as connection:
            return put_on(connection, chain(ahead, left), schema=self.schema)

    def close(self) -> None:
        """Close the pool. The client may be used again; it opens another one."""
        self._forget_the_parents()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _session(self) -> Iterator[Connection]:
        if self._connection is not None:
            yield self._connection
            return
        with self._opened().connection() as connection:
            yield connection

    def _opened(self) -> Pool:
        self._forget_the_parents()
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    pool: Pool = psycopg_pool.ConnectionPool(
                        find_dsn(self._dsn),
                        kwargs=dict(_SESSION),
                        min_size=self._sizes[0],
                        max_size=self._sizes[1],
                        timeout=self._timeout,
                        check=_notice_the_end,
                        num_workers=1,
                        open=False,
                        name="jobherd",
                    )
                    pool.open()
                    self._pool = pool
        return self._pool

    def _forget_the_parents(self) -> None:
        if self._pid != os.getpid():
            _left_behind.append(self._pool)
            # The lock too: another thread of the parent may have held it at the fork, and would never let go of it here.
            self._pool, self._pid, self._lock = None, os.getpid(), threading.Lock()


class AsyncClient:
    """`Client` for asyncio. Its pool belongs to the event loop that first uses it; another loop gets another pool.

    The parameters are those of `Client`; `connection` is an asynchronous one.

    >>> async with AsyncClient("postgresql:///app") as client:  # doctest: +SKIP
    ...     await client.enqueue("mail:receipt", {"order_id": 7})
    42
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str = sql.SCHEMA,
        connection: AsyncConnection | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = sql.check_schema(schema)
        self._dsn = dsn
        self._connection = connection
        self._sizes = (min_size, max_size)
        self._timeout = at_least_zero(timeout, field="timeout")
        self._pool: AsyncPool | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None

    async def enqueue(self, kind: str, payload: object = None, **options: Any) -> int:
        """Put one job into the queue and return its id. See `Client.enqueue`."""
        return (await self.put([_bulk.one_by_name(kind, payload, options)]))[0]

    async def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Put many jobs of one kind into the queue, all or none. See `Client.enqueue_many`."""
        return await self.put(_bulk.many_by_name(kind, payloads, options))

    async def enqueue_stream(
        self,
        kind: str,
        payloads: Iterable[object],
        *,
        on_chunk: Callable[[list[int]], object] | None = None,
        chunk: int = _bulk.CHUNK,
        **options: Any,
    ) -> int:
        """Put jobs into the queue as they come, each chunk in a transaction of its own. See `Client.enqueue_stream`."""
        return await _bulk.astream(_bulk.many_by_name(kind, payloads, options, most=chunk), self.put, on_chunk)

    async def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None."""
        return await self.run(_enqueue.show_job(job_id))

    async def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:  # noqa: ASYNC109  # as in Client
        """Return the job's row once it is over. See `Client.wait`."""
        return (await self.wait_many([job_id], timeout))[job_id]

    async def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:  # noqa: ASYNC109
        """Return the rows of these jobs by id once all are over. See `Client.wait_many`."""
        vigil = Vigil(job_ids, timeout, deaf=self._connection is not None)
        first = vigil.due()
        vigil.found(first, await self.run(_enqueue.show_jobs(first)))
        while vigil.left and self._connection is not None:
            await asyncio.sleep(vigil.patience())
            due = vigil.due()
            vigil.found(due, await self.run(_enqueue.show_jobs(due)))
        if vigil.left:
            vigil.patience()
            async with await psycopg.AsyncConnection.connect(find_listen_dsn(self._dsn), **_SESSION) as ears:
                for statement in ready_to_hear(vigil):
                    await arun_on(ears, statement, schema=self.schema)
                due = list(vigil.left)
                while True:
                    if due:
                        vigil.found(due, await arun_on(ears, _enqueue.show_jobs(due), schema=self.schema))
                    if not vigil.left:
                        break
                    async for note in ears.notifies(timeout=vigil.patience(), stop_after=1):
                        vigil.heard(note.payload)
                    due = vigil.due()
        return vigil.rows()

    async def cancel(self, job_id: int) -> str | None:
        """Cancel a job. See `Client.cancel`."""
        return await self.run(_enqueue.cancel_job(job_id))

    async def retry(self, job_id: int) -> str | None:
        """Run a job again, at once. See `Client.retry`."""
        return await self.run(_enqueue.retry_job(job_id))

    async def run(self, statement: Statement[T]) -> T:
        """Send one of this package's statements."""
        async with self._session() as connection:
            return await arun_on(connection, statement, schema=self.schema)

    async def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Put jobs of this package's making into the queue, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # see Client.put
        async with self._session() as connection:
            return await aput_on(connection, chain(ahead, left), schema=self.schema)

    async def close(self) -> None:
        """Close the pool. The client may be used again; it opens another one."""
        pool, self._pool = self._pool, None
        if pool is not None and self._home == (os.getpid(), asyncio.get_running_loop()):
            await pool.close()
        elif pool is not None:
            _left_behind.append(pool)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncConnection]:
        if self._connection is not None:
            yield self._connection
            return
        pool = await self._opened()
        async with pool.connection() as connection:
            yield connection

    async def _opened(self) -> AsyncPool:
        home = (os.getpid(), asyncio.get_running_loop())
        if self._pool is not None and self._home == home:
            return self._pool
        if self._pool is not None:
            _left_behind.append(self._pool)
        # No await before the pool is in place: two tasks that come here together must find the same one.
        pool: AsyncPool = psycopg_pool.AsyncConnectionPool(
            find_dsn(self._dsn),
            kwargs=dict(_SESSION),
            min_size=self._sizes[0],
            max_size=self._sizes[1],
            timeout=self._timeout,
            check=_anotice_the_end,
            num_workers=1,
            open=False,
            name="jobherd",
        )
        self._pool, self._home = pool, home
        await pool.open()
        return pool


_default: Client | None = None
_joined: ContextVar[Own | None] = ContextVar("jobherd_joined", default=None)
"""The connection of the job's transaction that this code runs in. Of the context and not of the process: what a thread that an earlier
job has left enqueues meanwhile must not be rolled back with this one's."""


def join(connection: Own) -> Token[Own | None]:
    """From here on, whoever enqueues without naming a client or connection does so in the transaction of `connection`."""
    return _joined.set(connection)


def part(before: Token[Own | None]) -> None:
    """End what `join` began."""
    _joined.reset(before)


def joined() -> Own | None:
    """Return the connection of the job's transaction that the caller runs in, or None."""
    return _joined.get()


def default_client() -> Client:
    """Return what `Handler.enqueue` uses when it is given neither client nor connection: the process-wide client.

    Inside a job's transaction it is a client of that transaction.
    Raises TypeError inside the transaction of a coroutine, whose connection must be awaited.
    """
    global _default  # the one place that knows it
    if (own := _joined.get()) is not None:
        if isinstance(own, psycopg.AsyncConnection):
            message = "this runs in the transaction of a coroutine, and blocking there would stop the event loop: await aenqueue(...)"
            raise TypeError(message)
        return Client(schema=sql.SCHEMA if _default is None else _default.schema, connection=own)
    if _default is None:
        _default = Client()
    return _default


def configure(dsn: str | None = None, *, schema: str = sql.SCHEMA, client: Client | None = None) -> Client:
    """Say where handlers and producers of this process enqueue by default, and return that client.

    dsn, schema: as for `Client`; or client: a ready one. A client that was the default before is left as it is.

    >>> _ = configure("postgresql:///app")
    """
    global _default
    _default = client if client is not None else Client(dsn, schema=schema)
    return _default


def _text(statement: Statement[Any], schema: str | None) -> bytes:
    return sql.load(statement.name, _known(schema)).encode()


def _known(schema: str | None) -> str:
    if schema is not None:
        return schema
    return sql.SCHEMA if _default is None else _default.schema


def _take_json_as_text(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> None:
    # psycopg's own loader raises for documents that Python cannot hold, and then the job cannot even be shown.
    for name in _JSON_TYPES:
        cursor.adapters.register_loader(name, TextLoader)


def _names(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> tuple[str, ...]:
    return tuple(column.name for column in cursor.description or ())


def _notice_the_end(connection: psycopg.Connection[Row]) -> None:
    """Raise OperationalError if the server has ended the session. A round trip is made only when the server has said something."""
    if _has_news(connection.pgconn.socket):
        psycopg_pool.ConnectionPool.check_connection(connection)


async def _anotice_the_end(connection: psycopg.AsyncConnection[Row]) -> None:
    if _has_news(connection.pgconn.socket):
        await psycopg_pool.AsyncConnectionPool.check_connection(connection)


def _has_news(socket: int) -> bool:
    poll = select.poll()  # select() refuses file numbers beyond 1023
    poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
