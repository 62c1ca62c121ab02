"""The sessions in which table stores are worked, and the check of such a table when a worker starts.

They are psycopg connections, unlike those of `connection.py`: a handler gets one, and the
statements depend on the table. Nothing here waits for a database that is away: the caller decides
what to do then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS, OurCursor
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.composed import compose, find_columns, misfits
from jobherd.workers.database.opening import open_session
from jobherd.workers.database.reconnecting import PATIENCE
from jobherd.workers.database.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg.abc import AdaptContext

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.process.spec import ChildSettings

QUIET: Final = 0.5
"""Seconds without use after which the session is tested before its next use."""

_OF_SCHEMA: Final = 25
"""Must equal the number in `terminate_child_sessions` and `terminate_table_session`."""


def session_name(child: int, schema: str) -> str:
    """Return the name of the session in which a worker works records.

    The supervisor ends it by that name once the worker is dead. Another schema may have a worker of
    the same number, so the schema is part of the name. Only the first part of a long schema name is
    used: beyond 63 bytes the server would cut off the number.
    """
    return f"jobherd:table:{f'{schema}.'[:_OF_SCHEMA]}{child}"


def connect(
    settings: ChildSettings,
    name: str,
    *,
    pooled: bool = False,
    lock_timeout: str = "0",
    context: AdaptContext | None = None,
) -> psycopg.Connection[Any]:
    """Return a connection for the statements about an application's table. Raises psycopg.Error.

    pooled: a pooler is in between. The next backend does not have the last one's prepared
    statements, and session settings would stay with a backend for its next client. So `steer` is
    called for each transaction instead.
    context: the adapters of the connection. Default None: those of the application, whose handlers
    get the connection.
    """
    connection = open_session(settings.dsn, name, context=context)
    if pooled:
        connection.prepare_threshold = None
    else:
        steer(connection, settings, lock_timeout=lock_timeout)
    return connection


def look_whether_it_answers(connection: psycopg.Connection[Any], settings: ChildSettings) -> None:
    """Raise psycopg.OperationalError, and close the session, if the server does not respond in time.

    A device in between may drop a session that was unused for a while, and the driver waits for a
    response indefinitely.
    """
    try:
        Wire(connection, settings.schema, prepared=False, patience=PATIENCE).ping()
    except psycopg.Error:
        connection.close()
        raise


def steer(
    connection: psycopg.Connection[Any], settings: ChildSettings, *, lock_timeout: str, local: bool = False
) -> None:
    """Set up the session, or its current transaction, for statements about an application's table.

    Raises psycopg.Error.
    """
    OurCursor(connection).execute(
        sql.load("table/prepare_table_session", settings.schema), {"lock_timeout": lock_timeout, "local": local}
    )


def look_at_tables(settings: ChildSettings, tables: Iterable[TableHandler], *, pooled: bool) -> list[str]:
    """Return a sentence for each problem of the stores' tables, with its fix.

    Raises psycopg.Error.
    """
    problems: list[str] = []
    with connect(settings, "jobherd:check", pooled=pooled, context=OURS) as connection:
        for table in tables:
            names, store = table.store.names, table.store
            rows = connection.execute(find_columns(settings.schema), {"table": names.quoted}).fetchall()
            found = misfits(names, {name: (type_, unique) for name, type_, unique in rows})
            if not found:
                try:
                    columns = [
                        column.name for column in connection.execute(compose("try_columns", names)).description or ()
                    ]
                    found += store.scanner.misfits(columns)
                    connection.execute(compose("try_order", names))
                except psycopg.Error as problem:
                    if not problem.sqlstate:
                        raise
                    found.append(
                        f"the server does not understand its columns, view or order_by: {sanitize(problem.diag.message_primary, 500)}"
                    )
            problems += [f"store {store.name} ({table.file}:{table.line}): {each}" for each in found]
    return problems
