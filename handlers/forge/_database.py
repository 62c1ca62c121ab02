"""One connection per process for these handlers, made when it is first needed and made anew when it is lost.

A handler opens short transactions with `transaction()` and keeps none while it waits for git or for the network. Nothing here retries:
a lost connection fails the attempt, and the next one gets another.
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
from jobherd.handlers._enqueue.dsn import find_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd import Client

Row = dict[str, Any]

PATIENCE: Final = {"connect_timeout": 10, "tcp_user_timeout": 15_000}
"""In seconds and milliseconds, unless the DSN says otherwise. A hook keeps somebody's `git push` waiting for so long, no more."""


@dataclass(frozen=True, slots=True)
class Database:
    """An open transaction. `connection` is for `.options(connection=...)`: a job enqueued on it is part of the transaction."""

    connection: psycopg.Connection[Any]
    schema: str

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Send the statement of that name below `queries/forge/` and return its rows, none if it returns nothing."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql.load(f"forge/{statement}", self.schema).encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def row(self, statement: str, **parameters: object) -> Row | None:
        """Send a statement and return its first row, or None."""
        return next(iter(self.rows(statement, **parameters)), None)

    def one(self, statement: str, **parameters: object) -> Row:
        """Send a statement that always returns a row."""
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
"""Connections of a parent process: closing one here, or letting it be collected, could end the parent's session."""


@contextlib.contextmanager
def transaction() -> Iterator[Database]:
    """Open a transaction on the default client's database, and commit it at the end of the block.

    Raises NotConfiguredError when nobody said which database, and psycopg's errors.

    >>> with transaction() as database:  # doctest: +SKIP
    ...     database.row("show_repo", id=7)
    """
    client = default_client()
    own = client._connection  # noqa: SLF001  # a test's: what it enqueues and what it reads must be one transaction
    connection = own if own is not None else _connection(client)
    try:
        with connection.transaction():
            yield Database(connection, client.schema)
    finally:
        # Torn out of a statement by a timeout, it may have one still running: nobody may use it again.
        if own is None and not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()


def _connection(client: Client) -> psycopg.Connection[Any]:
    global _held  # the one place that knows it
    held = _held
    if held is not None and held.process != os.getpid():
        _left_behind.append(held)
        held = None
    if held is not None and (held.client is not client or not _is_alive(held.connection)):
        held.connection.close()
        held = None
    if held is None:
        dsn = find_dsn(client._dsn)  # noqa: SLF001  # the same database, in a session of our own
        given = conninfo_to_dict(dsn)
        more: dict[str, Any] = {name: value for name, value in PATIENCE.items() if name not in given}
        connection = psycopg.connect(dsn, autocommit=True, application_name="jobherd forge", client_encoding="UTF8", **more)
        held = _held = _Held(os.getpid(), client, connection)
    return held.connection


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    if connection.closed:
        return False
    # Nobody speaks to an idle session but to end it. What was said at its end has arrived by now: no round trip is needed.
    heard = select.poll()
    heard.register(connection.fileno(), select.POLLIN)
    return not heard.poll(0)


def close() -> None:
    """Close this process's connection, if it has one. For commands and tests; a worker's ends with the process."""
    global _held
    held, _held = _held, None
    if held is not None and held.process == os.getpid():
        held.connection.close()
