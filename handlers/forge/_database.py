"""One database connection per process, opened on first use and reopened when it is lost.

A handler opens short transactions with `transaction()` and keeps none open while it waits for git
or the network. Nothing here retries: a lost connection fails the attempt, and the next one gets a
new connection.
"""

from __future__ import annotations

import contextlib
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.handlers._enqueue.default import default_client
from jobherd.handlers._enqueue.driver_connection import driver_of
from jobherd.handlers._enqueue.dsn import find_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd import Client

Row = dict[str, Any]

PATIENCE: Final = {"connect_timeout": 10, "tcp_user_timeout": 15_000}
"""In seconds and milliseconds, unless the DSN overrides them. A hook delays `git push` by at most
that long."""


@dataclass(frozen=True, slots=True)
class Database:
    """An open transaction.

    Pass `connection` to `.options(connection=...)` to enqueue a job as part of it.
    """

    connection: psycopg.Connection[Any]
    schema: str

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Run a statement, for example "forge/show_repo", and return its rows.

        Returns an empty list if the statement returns none.
        """
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql.load(statement, self.schema).encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def row(self, statement: str, **parameters: object) -> Row | None:
        """Run a statement and return its first row, or None."""
        return next(iter(self.rows(statement, **parameters)), None)

    def one(self, statement: str, **parameters: object) -> Row:
        """Run a statement that always returns a row."""
        row = self.row(statement, **parameters)
        assert row is not None, f"{statement} returned no row"
        return row


@dataclass(slots=True)
class _Held:
    process: int
    client: Client
    connection: psycopg.Connection[Any]


_held: _Held | None = None
_left_behind: list[object] = []
"""Connections of a parent process: closing or collecting one here could end the parent's
session."""


@contextlib.contextmanager
def transaction() -> Iterator[Database]:
    """Open a transaction on the default client's database, and commit it at the end of the block.

    Raises NotConfiguredError if no database is configured, and psycopg's errors.
    >>> with transaction() as database:  # doctest: +SKIP
    ...     database.row("forge/show_repo", id=7)
    """
    client = default_client()
    own = client._connection  # noqa: SLF001  # a test's: what it enqueues and what it reads must be one transaction
    connection = driver_of(own) if own is not None else _connection(client)
    try:
        with connection.transaction():
            yield Database(connection, client.schema)
    finally:
        # A timeout may have interrupted a statement that is still running: the connection must not
        # be reused.
        if own is None and not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()


def _connection(client: Client) -> psycopg.Connection[Any]:
    global _held  # set only here
    held = _held
    if held is not None and held.process != os.getpid():
        _left_behind.append(held)
        held = None
    if held is not None and (held.client is not client or not _is_alive(held.connection)):
        held.connection.close()
        held = None
    if held is None:
        dsn = find_dsn(client._dsn)  # noqa: SLF001  # the same database, in a separate session
        given = conninfo_to_dict(dsn)
        more: dict[str, Any] = {name: value for name, value in PATIENCE.items() if name not in given}
        connection = psycopg.connect(
            dsn, autocommit=True, application_name="jobherd forge", client_encoding="UTF8", **more
        )
        held = _held = _Held(os.getpid(), client, connection)
    return held.connection


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    if connection.closed:
        return False
    # The server sends nothing to an idle session except its end, and that has arrived by now: no
    # round trip is needed.
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return not socket.poll(0)


def close() -> None:
    """Close this process's connection, if any.

    For commands and tests; a worker's connection ends with its process.
    """
    global _held
    held, _held = _held, None
    if held is not None and held.process == os.getpid():
        held.connection.close()
