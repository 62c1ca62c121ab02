"""The resetter's connection to the application's tables: opened when needed, checked after a pause.

It decides nothing about records. Statements wait at most `_LOCKS` for another session's lock.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._enqueue.adapters import OURS
from jobherd.sql.table_statements import compose
from jobherd.workers.stores.session import QUIET, check_answers, connect, prepare_table_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from jobherd.sql.table_statements import Names
    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.spec import ChildSettings

_LOCKS: Final = "2s"
"""Lock timeout: no other session's open transaction may delay the heartbeats of all other records."""


class TableConnection:
    """One connection. A new one is made after it was closed.

    session: the resetter's session. It waits while the database is away.
    """

    def __init__(self, settings: ChildSettings, session: Session) -> None:
        self._settings = settings
        self._session = session
        self._connection: psycopg.Connection[Any] | None = None
        self._used_at = 0.0

    def close(self) -> None:
        """Close the connection. The next statement opens another one."""
        if self._connection is not None:
            self._connection.close()

    def ready(self) -> psycopg.Connection[Any]:
        """Return the open connection. Waits while the database is away; raises StopWaiting after a dismissal."""
        if self._connection is None or self._connection.closed:
            self._session.run("observe/show_time")  # It waits for as long as the database is away.
            self._connection = connect(
                self._settings, "jobherd:resetter", pooled=self._session.pooled, lock_timeout=_LOCKS, context=OURS
            )
        elif time.monotonic() >= self._used_at + QUIET:
            check_answers(self._connection, self._settings)
        self._used_at = time.monotonic()
        return self._connection

    def ask(self, statement: str, names: Names, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement of `sql/table_templates` about the table with these names, and return its rows."""
        with self._prepared() as connection:
            return connection.execute(compose(statement, names, self._settings.schema), parameters).fetchall()

    def execute(self, statement: str, names: Names, parameters: dict[str, Any]) -> None:
        """Run a statement that returns no rows."""
        with self._prepared() as connection:
            connection.execute(compose(statement, names), parameters)

    @contextmanager
    def _prepared(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield the session. Behind a pooler, it is in a transaction that `prepare_table_session` has set up."""
        connection = self.ready()
        if not self._session.pooled:
            yield connection
            return
        with connection.transaction():
            prepare_table_session(connection, self._settings, lock_timeout=_LOCKS, local=True)
            yield connection
