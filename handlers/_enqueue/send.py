"""Sends statements and chunks of jobs on a connection of psycopg, synchronous or asynchronous, or asyncpg.

Each statement runs in the connection's open transaction, if there is one. Nothing here commits it.
The two variants differ only in `await`.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OurAsyncCursor, OurCursor
from jobherd.handlers._enqueue.asyncpg_connection import AsyncpgConnection
from jobherd.handlers._enqueue.missing_schema import explain
from jobherd.handlers._enqueue.origin import has_origin, origin
from jobherd.handlers._enqueue.tracing import enqueueing, tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.statements import Row, Statement

T = TypeVar("T")

Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"
AsyncDriver: TypeAlias = "psycopg.AsyncConnection[Any] | AsyncpgConnection"
Own: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


def run_on(connection: Connection, statement: Statement[T], *, schema: str) -> T:
    """Run a statement on the caller's connection, in the caller's transaction if there is one.

    The result is requested in binary: as text, times have the session's style, and psycopg reads
    only ISO.
    """
    # The class is named here: the connection's cursor_factory may create cursors that read $1, or
    # that keep their rows on the server.
    with OurCursor(connection) as cursor:
        if statement.lines is not None:
            with cursor.copy(_text(statement, schema)) as copy:
                copy.write(statement.lines)
            return statement.read([], ())
        try:
            cursor.execute(_text(statement, schema), statement.parameters, binary=True)
            rows = (
                cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
            )  # in a pipeline there is no description before the rows
        except psycopg.ProgrammingError as problem:
            explain(problem, schema)
            raise
        return statement.read(rows, _names(cursor))


async def arun_on(connection: AsyncDriver, statement: Statement[T], *, schema: str) -> T:
    """Like `run_on`, on an asynchronous connection."""
    if isinstance(connection, AsyncpgConnection):
        return await connection.run(statement, schema)
    async with OurAsyncCursor(connection) as cursor:
        if statement.lines is not None:
            async with cursor.copy(_text(statement, schema)) as copy:
                await copy.write(statement.lines)
            return statement.read([], ())
        try:
            await cursor.execute(_text(statement, schema), statement.parameters, binary=True)
            rows = await cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
        except psycopg.ProgrammingError as problem:
            explain(problem, schema)
            raise
        return statement.read(rows, _names(cursor))


def start_on(connection: Connection, build: Callable[[Origin | None], Statement[int]], *, schema: str) -> int:
    """Enqueue a flow on the caller's connection, and return its id."""
    return run_on(connection, build(origin(connection.pgconn.db, schema)), schema=schema)


async def astart_on(connection: AsyncDriver, build: Callable[[Origin | None], Statement[int]], *, schema: str) -> int:
    """Like `start_on`, on an asynchronous connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        found = origin(connection.pgconn.db, schema)
    else:
        found = origin(await connection.database(), schema) if has_origin() else None
    return await arun_on(connection, build(found), schema=schema)


def put_on(connection: Connection, chunks: Iterable[Chunk], *, schema: str) -> list[int]:
    """Enqueue jobs on the caller's connection, all or none, and return their ids in order."""
    left = iter(chunks)
    ahead = list(islice(left, 2))
    # the usual case; one chunk is all or nothing by itself
    if len(ahead) < 2 and all(chunk.is_one_statement for chunk in ahead):
        return _put_one(connection, ahead[0], schema) if ahead else []
    if not connection.autocommit:
        with psycopg.Cursor(connection) as cursor:
            # begins the caller's transaction: otherwise transaction() would begin its own and
            # commit it
            cursor.execute(b"")
    ids: list[int] = []
    with connection.transaction():
        for chunk in chain(ahead, left):
            ids += _put_one(connection, chunk, schema)
    return ids


async def aput_on(connection: AsyncDriver, chunks: Iterable[Chunk], *, schema: str) -> list[int]:
    """Like `put_on`, on an asynchronous connection."""
    left = iter(chunks)
    ahead = list(islice(left, 2))
    if len(ahead) < 2 and all(chunk.is_one_statement for chunk in ahead):
        return await _aput_one(connection, ahead[0], schema) if ahead else []
    if isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit:
        async with psycopg.AsyncCursor(connection) as cursor:
            await cursor.execute(b"")  # see put_on
    ids: list[int] = []
    whole = connection.all_or_none() if isinstance(connection, AsyncpgConnection) else connection.transaction()
    async with whole:
        for chunk in chain(ahead, left):
            ids += await _aput_one(connection, chunk, schema)
    return ids


def _put_one(connection: Connection, chunk: Chunk, schema: str) -> list[int]:
    own = tracer()
    if own is None:
        return _send_one(connection, chunk, schema)
    with enqueueing(own, chunk) as (traced, record_ids):
        ids = _send_one(connection, traced, schema)
        record_ids(ids)
    return ids


def _send_one(connection: Connection, chunk: Chunk, schema: str) -> list[int]:
    chunk = chunk.with_origin(origin(connection.pgconn.db, schema))
    may_copy = chunk.is_large and not _is_pipeline(connection)
    reserved = run_on(connection, chunk.reserve(), schema=schema) if may_copy else None
    if reserved is None:
        ids = run_on(connection, chunk.statement(), schema=schema)
    else:
        run_on(connection, chunk.copy(reserved), schema=schema)
        ids = reserved.ids
    if (demands := chunk.demands(ids)) is not None:
        run_on(connection, demands, schema=schema)
    return ids


async def _aput_one(connection: AsyncDriver, chunk: Chunk, schema: str) -> list[int]:
    own = tracer()
    if own is None:
        return await _asend_one(connection, chunk, schema)
    with enqueueing(own, chunk) as (traced, record_ids):
        ids = await _asend_one(connection, traced, schema)
        record_ids(ids)
    return ids


async def _asend_one(connection: AsyncDriver, chunk: Chunk, schema: str) -> list[int]:
    if isinstance(connection, psycopg.AsyncConnection):
        chunk = chunk.with_origin(origin(connection.pgconn.db, schema))
        may_copy = chunk.is_large and not _is_pipeline(connection)
    else:
        chunk = chunk.with_origin(origin(await connection.database(), schema)) if has_origin() else chunk
        may_copy = False
    reserved = await arun_on(connection, chunk.reserve(), schema=schema) if may_copy else None
    if reserved is None:
        ids = await arun_on(connection, chunk.statement(), schema=schema)
    else:
        await arun_on(connection, chunk.copy(reserved), schema=schema)
        ids = reserved.ids
    if (demands := chunk.demands(ids)) is not None:
        await arun_on(connection, demands, schema=schema)
    return ids


def _is_pipeline(connection: Own) -> bool:
    """Return whether the connection is in pipeline mode, in which PostgreSQL accepts no COPY."""
    return connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF


def _text(statement: Statement[Any], schema: str) -> bytes:
    return sql.load(statement.name, schema).encode()


def _names(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> tuple[str, ...]:
    return tuple(column.name for column in cursor.description or ())
