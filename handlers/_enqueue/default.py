"""The default client: the process-wide one, or the transaction of the job that the code runs in."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from jobherd.handlers._enqueue import send
from jobherd.handlers._enqueue.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.client_shards import ClientShards
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.send import AsyncDriver, Connection, Own
    from jobherd.handlers._enqueue.statements import Statement

_chosen: Client | None = None
_entered: ContextVar[Own | None] = ContextVar("jobherd_entered", default=None)
"""Connection of the job's transaction that this code runs in. It belongs to the context, not the
process: what a thread left by an earlier job enqueues meanwhile must not be rolled back with this
job's transaction."""


def enter_transaction(connection: Own) -> Token[Own | None]:
    """Enqueue in the transaction of `connection`, until `leave_transaction`, if a call names no client or connection.

    Returns:
        The argument of `leave_transaction`.
    """
    return _entered.set(connection)


def leave_transaction(before: Token[Own | None]) -> None:
    """Undo `enter_transaction`."""
    _entered.reset(before)


def entered_transaction() -> Own | None:
    """Return the connection of the job's transaction that the caller runs in, or None."""
    return _entered.get()


def default_client() -> Client:
    """Return the default client: the process-wide one, or a client of the job's transaction.

    `Handler.enqueue` uses it without a client or connection. Inside a job's transaction, return a
    client of that transaction.

    Raises:
        TypeError: this runs in the transaction of a coroutine, whose connection must be awaited.
    """
    if (own := _entered.get()) is not None:
        if isinstance(own, psycopg.AsyncConnection):
            message = (
                "this runs in the transaction of a coroutine, and blocking there would stop the event loop: "
                "await aenqueue(...)"
            )
            raise TypeError(message)
        return client_on(own)
    return _process_client()


def _process_client() -> Client:
    global _chosen
    if _chosen is None:
        _chosen = Client()
    return _chosen


def configure(dsn: str | None = None, *, schema: str | None = None, client: Client | None = None) -> Client:
    """Set the default client of this process for handlers and producers, and return it.

    Args:
        dsn: address of the database, as for `Client`.
        schema: Jobherd's schema, as for `Client`.
        client: an existing client, used instead of `dsn` and `schema`. The previous default client
            is not closed.

    Example:
        >>> _ = configure("postgresql:///app")
    """
    global _chosen
    _chosen = client if client is not None else Client(dsn, schema=schema)
    return _chosen


def divided() -> ClientShards | None:
    """Return the databases of the process-wide client; None: it has one."""
    return None if _chosen is None else _chosen.shards


def client_on(connection: Connection) -> Client:
    """Return a client of the caller's connection, with schema and shards of the process-wide client."""
    return _process_client().on(connection)


def put_on_own(connection: Connection, chunks: Iterable[Chunk], schema: str | None = None) -> list[int]:
    """Enqueue chunks on the caller's connection. Raises ValueError if it leads to another shard."""
    if divided() is not None:
        return client_on(connection).put(chunks)
    return send.put_on(connection, chunks, schema=schema_or_default(schema))


async def aput_on_own(connection: AsyncDriver, chunks: Iterable[Chunk], schema: str | None = None) -> list[int]:
    """Like `put_on_own`, on an asynchronous connection."""
    schema = schema_or_default(schema)
    if (shards := divided()) is not None:
        chunks = list(chunks)
        for chunk in chunks[:1]:
            await _check_own(connection, shards, partial(shards.address_for, chunk), schema)
    return await send.aput_on(connection, chunks, schema=schema)


async def astart_on_own(connection: AsyncDriver, build: Callable[[Origin | None], Statement[int]]) -> int:
    """Enqueue a flow on the caller's asynchronous connection. Raises ValueError if it leads to another shard."""
    schema = schema_or_default()
    if (shards := divided()) is not None:
        await _check_own(connection, shards, partial(shards.flow_address, build(None)), schema)
    return await send.astart_on(connection, build, schema=schema)


async def _check_own(connection: AsyncDriver, shards: ClientShards, find: Callable[[], str], schema: str) -> None:
    # In a thread: the process-wide client is synchronous.
    shards.map.check_own(
        await send.arun_on(connection, shards.map.show(), schema=schema), await asyncio.to_thread(find)
    )


def schema_or_default(schema: str | None = None) -> str:
    """Return `schema`, or the schema of the process-wide client."""
    return _process_client().schema if schema is None else schema


@contextmanager
def keeping_default() -> Iterator[None]:
    """Restore the default client at the end of the block."""
    global _chosen
    before = _chosen
    try:
        yield
    finally:
        _chosen = before
