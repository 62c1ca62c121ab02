"""The client of those who name none: the process's own, or the transaction of the job that the code runs in."""

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
    if (own := _joined.get()) is not None:
        if isinstance(own, psycopg.AsyncConnection):
            message = "this runs in the transaction of a coroutine, and blocking there would stop the event loop: await aenqueue(...)"
            raise TypeError(message)
        return Client(schema=schema_or_default(), connection=own)
    return _process_client()


def _process_client() -> Client:
    global _chosen
    if _chosen is None:
        _chosen = Client()
    return _chosen


def configure(dsn: str | None = None, *, schema: str | None = None, client: Client | None = None) -> Client:
    """Say where handlers and producers of this process enqueue by default, and return that client.

    dsn, schema: as for `Client`; or client: a ready one. A client that was the default before is left as it is.

    >>> _ = configure("postgresql:///app")
    """
    global _chosen
    _chosen = client if client is not None else Client(dsn, schema=schema)
    return _chosen


def schema_or_default(schema: str | None = None) -> str:
    """Return `schema`, or that of the process-wide client."""
    return _process_client().schema if schema is None else schema


@contextmanager
def keeping_default() -> Iterator[None]:
    """Put back at the end of the block what was the default at its beginning."""
    global _chosen
    before = _chosen
    try:
        yield
    finally:
        _chosen = before
