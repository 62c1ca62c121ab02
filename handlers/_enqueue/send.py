"""Statements of this package, and chunks of jobs, sent on a psycopg connection, synchronous or not.

Each runs in the transaction that the connection is in, if there is one; nothing here commits that. The two ways differ in `await` alone.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OurAsyncCursor, OurCursor
from jobherd.handlers._enqueue.origin import origin
from jobherd.handlers._enqueue.tracing import enqueueing, tracer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.options import Row, Statement

T = TypeVar("T")

Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"
Own: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


def run_on(connection: Connection, statement: Statement[T], *, schema: str) -> T:
    """Run a statement on the caller's own connection, in the caller's transaction if there is one.

    The answer is asked for in binary: as text, times are in the session's style, and psycopg reads no other than ISO.
    """
    # The class by name: the connection's cursor_factory may be one that reads $1, or that keeps its rows on the server.
    with OurCursor(connection) as cursor:
        if statement.lines is not None:
            with cursor.copy(_text(statement, schema)) as copy:
                copy.write(statement.lines)
            return statement.read([], ())
        cursor.execute(_text(statement, schema), statement.parameters, binary=True)
        rows = (
            cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
        )  # a pipeline knows no description before its rows
        return statement.read(rows, _names(cursor))


async def arun_on(connection: AsyncConnection, statement: Statement[T], *, schema: str) -> T:
    """Run a statement on the caller's own asynchronous connection, in the caller's transaction if there is one."""
    async with OurAsyncCursor(connection) as cursor:
        if statement.lines is not None:
            async with cursor.copy(_text(statement, schema)) as copy:
                await copy.write(statement.lines)
            return statement.read([], ())
        await cursor.execute(_text(statement, schema), statement.parameters, binary=True)
        rows = await cursor.fetchall() if cursor.description or _is_pipeline(connection) else []
        return statement.read(rows, _names(cursor))


def put_on(connection: Connection, chunks: Iterable[Chunk], *, schema: str) -> list[int]:
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


async def aput_on(connection: AsyncConnection, chunks: Iterable[Chunk], *, schema: str) -> list[int]:
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


def _put_one(connection: Connection, chunk: Chunk, schema: str) -> list[int]:
    own = tracer()
    if own is None:
        return _send_one(connection, chunk, schema)
    with enqueueing(own, chunk) as (traced, tell):
        ids = _send_one(connection, traced, schema)
        tell(ids)
    return ids


def _send_one(connection: Connection, chunk: Chunk, schema: str) -> list[int]:
    chunk = chunk.set_off(origin(connection.pgconn.db, schema))
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


async def _aput_one(connection: AsyncConnection, chunk: Chunk, schema: str) -> list[int]:
    own = tracer()
    if own is None:
        return await _asend_one(connection, chunk, schema)
    with enqueueing(own, chunk) as (traced, tell):
        ids = await _asend_one(connection, traced, schema)
        tell(ids)
    return ids


async def _asend_one(connection: AsyncConnection, chunk: Chunk, schema: str) -> list[int]:
    chunk = chunk.set_off(origin(connection.pgconn.db, schema))
    may_copy = chunk.is_large and not _is_pipeline(connection)
    reserved = await arun_on(connection, chunk.reserve(), schema=schema) if may_copy else None
    if reserved is None:
        ids = await arun_on(connection, chunk.statement(), schema=schema)
    else:
        await arun_on(connection, chunk.copy(reserved), schema=schema)
        ids = reserved.ids
    if (demands := chunk.demands(ids)) is not None:
        await arun_on(connection, demands, schema=schema)
    return ids


def _is_pipeline(connection: Connection | AsyncConnection) -> bool:
    """Whether the caller has made a pipeline of it, in which PostgreSQL takes no COPY."""
    return connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF


def _text(statement: Statement[Any], schema: str) -> bytes:
    return sql.load(statement.name, schema).encode()


def _names(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> tuple[str, ...]:
    return tuple(column.name for column in cursor.description or ())
