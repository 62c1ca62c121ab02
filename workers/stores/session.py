"""The sessions in which records of table stores are claimed and run.

They are psycopg connections, unlike those of `connection.py`: a handler gets one, and the
statements depend on the table. Nothing here waits for a database that is away: the caller decides
what to do then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OurCursor
from jobherd.workers.database.opening import open_session
from jobherd.workers.database.reconnecting import PATIENCE
from jobherd.workers.database.wire import Wire

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.spec import ChildSettings, ChildSpec

QUIET: Final = 0.5
"""Seconds without use after which the session is tested before its next use."""

_ENDING: Final = 40
"""Checks whether the server has ended a lost session."""
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
    statements, and session settings would stay with a backend for its next client. So
    `prepare_table_session` is called for each transaction instead.
    context: the adapters of the connection. Default None: those of the application, whose handlers
    get the connection.
    """
    connection = open_session(settings.dsn, name, context=context)
    if pooled:
        connection.prepare_threshold = None
    else:
        prepare_table_session(connection, settings, lock_timeout=lock_timeout)
    return connection


def check_answers(connection: psycopg.Connection[Any], settings: ChildSettings) -> None:
    """Raise psycopg.OperationalError, and close the session, if the server does not respond in time.

    A device in between may drop a session that was unused for a while, and the driver waits for a
    response indefinitely.
    """
    try:
        Wire(connection, settings.schema, prepared=False, patience=PATIENCE).ping()
    except psycopg.Error:
        connection.close()
        raise


def prepare_table_session(
    connection: psycopg.Connection[Any], settings: ChildSettings, *, lock_timeout: str, local: bool = False
) -> None:
    """Set up the session, or its current transaction, for statements about an application's table.

    Raises psycopg.Error.
    """
    OurCursor(connection).execute(
        sql.load("table/prepare_table_session", settings.schema), {"lock_timeout": lock_timeout, "local": local}
    )


class RecordSession:
    """The session in which a worker works records.

    session: the worker's other session. connection: None: there is none, or it was closed.
    used_at: when it was last used successfully, in monotonic seconds.
    """

    def __init__(self, session: Session, spec: ChildSpec) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self.used_at = 0.0
        self._session = session
        self._settings = spec.settings

    def ready(self) -> psycopg.Connection[Any]:
        """Return a connection whose server answers. Raises psycopg.Error."""
        if self.connection is None or self.connection.closed:
            return self.connect()
        self.check(self.connection, self.used_at)
        return self.connection

    def check(self, connection: psycopg.Connection[Any], since: float) -> None:
        """Raise psycopg.OperationalError if the server does not answer, unless `since` is less than QUIET ago."""
        if time.monotonic() >= since + QUIET:
            check_answers(connection, self._settings)

    def connect(self) -> psycopg.Connection[Any]:
        """Open a new connection. Raises psycopg.Error."""
        name = session_name(self._session.child, self._settings.schema)
        self.connection = connect(self._settings, name, pooled=self._session.pooled)
        return self.connection

    def close(self) -> None:
        """End the session."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def reset(self) -> None:
        """Reset the session.

        A search path or a role set by a handler must not affect the next record.
        """
        connection, settings = self.connection, self._settings
        if connection is not None and not connection.closed:
            connection.execute(sql.load("session/discard_session", settings.schema))
            if not self._session.pooled:
                prepare_table_session(connection, settings, lock_timeout="0")

    def terminate_former(self) -> None:
        """End the lost session on the server, however long the database is away.

        As long as that session exists, it locks the record.
        """
        for _ in range(_ENDING):
            child = {"child": self._session.child}
            [(alive,)] = self._session.run("table/terminate_table_session", child, patient=True)
            if not alive:
                break
            self._session.waiting.rest(0.05, patient=True)
