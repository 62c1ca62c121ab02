"""The separate session in which jobs' own transactions run, one after the other.

What a handler does to a session (settings, temporary tables, an interrupted statement) must not
reach the session that claims and settles. This module does not know what a job is: it keeps the
session reset, and finds out what became of a transaction whose session was lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.pq import TransactionStatus

from jobherd import sql
from jobherd.workers.database.opening import open_session
from jobherd.workers.database.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.workers.database.connection import Session
    from jobherd.workers.database.opening import Row
    from jobherd.workers.process.spec import ChildSpec

PATIENCE: Final = 60.0
"""Seconds without data from the server in which a transaction must begin and its session must be
reset. A device in between may have dropped a session that was unused for hours, and the job would
wait until its timeout. A legitimate wait, for another session's lock, takes seconds.
"""
_ENDING: Final = 200
"""Checks, 0.05 s apart, until a session that was ended counts as not ending."""


class TransactionSession:
    """The session, opened when a job first needs one.

    session: the worker's other session, which claims and settles.
    connection: None: there is none, or it was closed.
    wire: the same session, for the parts of a transaction before the handler and after its end. Its
    answers have a time limit.
    """

    def __init__(self, session: Session, spec: ChildSpec) -> None:
        self.connection: psycopg.Connection[Row] | None = None
        self.wire: Wire
        self._session = session
        self._spec = spec

    @property
    def child(self) -> int:
        """The number of the worker in `children`."""
        return self._session.child

    @property
    def pooled(self) -> bool:
        """Whether a pooler is in between."""
        return self._session.pooled

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended. If the server crashed, a transaction's id may be used again."""
        return self.connection is None or self.connection.closed or self.connection.broken

    def ready(self) -> psycopg.Connection[Row]:
        """Return the connection, reset and in no transaction. Raises psycopg.Error."""
        connection = self.connection
        if connection is not None and connection.info.transaction_status == TransactionStatus.IDLE:
            return connection
        self.close()
        spec = self._spec
        name = f"jobherd:{spec.kind}:{spec.supervisor}:{spec.incarnation}:transaction"
        connection = open_session(spec.settings.dsn, name, prepare_threshold=None)
        self.connection = connection
        self.wire = Wire(connection, spec.settings.schema, prepared=False, patience=PATIENCE)
        # Behind a pooler, the backend may belong to another client when this worker is dead.
        if not self.pooled:
            self.run("settle/register_transaction_session", {"child": self.child})
        return connection

    def run(self, statement: str, parameters: Mapping[str, object] | None = None) -> list[Row]:
        """Send a statement in the open transaction and return its rows. Raises psycopg.Error."""
        assert self.connection is not None
        cursor = self.connection.execute(self.text(statement), parameters or {})
        return cursor.fetchall() if cursor.description is not None else []

    def text(self, statement: str) -> bytes:
        """Return the text of a statement."""
        return sql.load(statement, self._spec.settings.schema).encode()

    def reset(self) -> None:
        """Reset the session now.

        A session lock that the handler has taken would otherwise be held until the next
        transaction, which may never come.
        """
        connection = self.connection
        if connection is None or connection.info.transaction_status != TransactionStatus.IDLE:
            return  # No transaction begins on it again.
        try:
            connection.autocommit = True
            self.wire.exchange(("session/discard_session", {}))
            while connection.pgconn.notifies():
                pass  # Notifications for this job's handler are not for the next job.
        except psycopg.Error:
            self.close()

    def undo(self, xact: str, token: int, *, usable: bool) -> bool:
        """Roll a transaction back, and reset the session. Return whether the handler had committed it.

        usable: no statement of the session was interrupted.
        """
        state = ""
        try:
            if self.connection is not None and usable:
                self.connection.rollback()
                self.connection.autocommit = True
                if xact:
                    state = str(self.run("settle/find_transaction_state", self._of(xact, token))[0][0])
        except psycopg.Error:
            state = ""
        # If the session broke, the server may have crashed. Then another transaction may have this
        # id, so nothing is known about the handler.
        lost = self.is_lost
        if not state:
            state, _ = self.end(xact, token)
        self.reset()
        return state == "committed" and not lost

    def end(self, xact: str, token: int) -> tuple[str, bool]:
        """End the session and return what happened to its transaction, and whether its claim still exists.

        After that, no session works on the transaction any more. xact: its id, or empty.
        """
        self.close()
        terminate = {"child": self.child}
        for _ in range(_ENDING):
            if not self._session.run("settle/terminate_transaction_session", terminate, patient=True)[0][0]:
                break
            time.sleep(0.05)
        if not xact:
            return "", False
        [(state, held)] = self._session.run("settle/find_transaction_state", self._of(xact, token), patient=True)
        return str(state), bool(held)

    def close(self) -> None:
        """End the session."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _of(self, xact: str, token: int) -> dict[str, object]:
        return {"xact": xact, "child": self.child, "token": token}
