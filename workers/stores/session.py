"""The sessions in which applications' tables are worked, and the look at such a table when a worker starts.

They are the driver's, unlike those of `connection.py`: a handler is given one, and what is sent depends on the table. Nothing here waits for
a database that is away: whoever asks says what is to be done then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS, OurCursor
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.composed import compose, find_columns, misfits
from jobherd.workers.database.connection import PATIENCE, open_session
from jobherd.workers.database.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg.abc import AdaptContext

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.process.spec import ChildSettings

QUIET: Final = 0.5
"""Seconds that nobody has needed such a session, after which it is looked whether it answers at all."""

_OF_SCHEMA: Final = 25
"""As `end_backend` and `end_table_session` have it."""


def session_name(child: int, schema: str) -> str:
    """Return what the session is called in which a child works records: the parent ends it by that name once the child is dead.

    Another schema has a child of that number too. Of a long name the first part must do: beyond 63 bytes the server would cut the number.
    """
    return f"jobherd:table:{f'{schema}.'[:_OF_SCHEMA]}{child}"


def connect(
    settings: ChildSettings, name: str, *, pooled: bool = False, lock_timeout: str = "0", context: AdaptContext | None = None
) -> psycopg.Connection[Any]:
    """Return a connection for the statements about an application's table. Raises psycopg.Error.

    pooled: a pooler stands between. The next backend does not know what was prepared on the last one, and what is set for a session would stay
        with it, for whoever gets it next: then `steer` is for each transaction.
    context: the adapters of the connection. Default None: those of the application, whose handlers get it.
    """
    connection = open_session(settings.dsn, name, context=context)
    if pooled:
        connection.prepare_threshold = None
    else:
        steer(connection, settings, lock_timeout=lock_timeout)
    return connection


def look_whether_it_answers(connection: psycopg.Connection[Any], settings: ChildSettings) -> None:
    """Raise psycopg.OperationalError, and close the session, if the server says nothing for too long.

    Something between may swallow a session that nobody needed for a while, and the driver waits for an answer for ever.
    """
    try:
        Wire(connection, settings.schema, prepared=False, patience=PATIENCE).knock()
    except psycopg.Error:
        connection.close()
        raise


def steer(connection: psycopg.Connection[Any], settings: ChildSettings, *, lock_timeout: str, local: bool = False) -> None:
    """Set the session, or the transaction that it is in, up for statements about an application's table. Raises psycopg.Error."""
    OurCursor(connection).execute(sql.load("steer_table_session", settings.schema), {"lock_timeout": lock_timeout, "local": local})


def look_at_tables(settings: ChildSettings, tables: Iterable[TableHandler], *, pooled: bool) -> list[str]:
    """Return a sentence for each thing that is wrong with the tables of the stores, and what to do about it. Raises psycopg.Error."""
    problems: list[str] = []
    with connect(settings, "jobherd:check", pooled=pooled, context=OURS) as connection:
        for table in tables:
            names, store = table.store.names, table.store
            rows = connection.execute(find_columns(settings.schema), {"table": names.quoted}).fetchall()
            found = misfits(names, {name: (type_, unique) for name, type_, unique in rows})
            if not found:
                try:
                    columns = [column.name for column in connection.execute(compose("try_columns", names)).description or ()]
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
