"""The default client: the process-wide one, or the transaction of the job that the code runs in."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

import psycopg

from jobherd.handlers._enqueue.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._enqueue.send import Own

_chosen: Client | None = None
_joined: ContextVar[Own | None] = ContextVar("jobherd_joined", default=None)
"""Connection of the job's transaction that this code runs in. It belongs to the context, not the
process: what a thread left by an earlier job enqueues meanwhile must not be rolled back with this
job's transaction."""


def join(connection: Own) -> Token[Own | None]:
    """From now on, enqueue in the transaction of `connection` by default.

    That is, in calls without a client or connection.
    """
    return _joined.set(connection)


def part(before: Token[Own | None]) -> None:
    """Undo `join`."""
    _joined.reset(before)


def joined() -> Own | None:
    """Return the connection of the job's transaction that the caller runs in, or None."""
    return _joined.get()


def default_client() -> Client:
    """Return the default client: the process-wide one, or a client of the job's transaction.

    `Handler.enqueue` uses it without a client or connection. Inside a job's transaction, return a
    client of that transaction.

    Raises:
        TypeError: this runs in the transaction of a coroutine, whose connection must be awaited.
    """
    if (own := _joined.get()) is not None:
        if isinstance(own, psycopg.AsyncConnection):
            message = (
                "this runs in the transaction of a coroutine, and blocking there would stop the event loop: "
                "await aenqueue(...)"
            )
            raise TypeError(message)
        return Client(schema=schema_or_default(), connection=own)
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
