"""The ways in which a child process sends statements over its session.

Callers get rows, `StopWaiting`, or an error in what they sent. A statement is sent again after a
break, however long the database is away, unless the method says otherwise. This module does not
know what the statements mean. Two statements that are sent together are two transactions.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import psycopg

from jobherd.workers.database.errors import is_unprepared
from jobherd.workers.database.reconnecting import Parameters, ReconnectingSession

if TYPE_CHECKING:
    from jobherd.workers.database.opening import Row
    from jobherd.workers.database.wire import Request, Wire

Response: TypeAlias = "list[Row] | psycopg.Error"

_log = logging.getLogger("jobherd.connection")


class Session(ReconnectingSession):
    """The one connection of a child process.

    spec: whose session it is. wake: where it waits while the database is away; a wake or a
    dismissal ends the wait.
    holding: called after a break, returns the tokens of the claims that the process knows of.
    patience: seconds without data from the server after which the session counts as lost. Doubled
    each time that happens, until the server responds.
    pinned: functions are found in pg_catalog only. Off with conditions of the application, whose
    names may be in its search path.
    """

    def run(
        self, statement: str, parameters: Parameters | None = None, *, patient: bool = False, stubborn: bool = True
    ) -> list[Row]:
        """Send a statement in its own transaction and return its rows, however long the database is away.

        statement: its name in sql/queries. It may be sent twice: a break hides whether it was
        committed.
        patient: also wait after a dismissal. For outcomes, which must not be lost.
        stubborn: retry after a deadlock or a lock timeout. Without it, the error is raised.
        Raises StopWaiting, or psycopg.Error if the statement itself is rejected.
        """
        return self._keep_trying(lambda: self._send(statement, parameters), patient=patient, stubborn=stubborn)

    def run_urgent(self, statement: str, parameters: Parameters) -> list[Row]:
        """Send a statement for which a producer waits.

        As `run`, without any avoidable step before it.
        """
        first: list[psycopg.Error] = []
        self._read_pending()
        if self._connection is not None:
            try:
                return self._wire.exchange_urgent(statement, parameters)
            except psycopg.Error as problem:
                if self._broken():
                    # Otherwise the new session, which comes first now, would be dropped for the old
                    # one's error.
                    self._note_lost(problem)
                else:
                    first.append(problem)

        def again() -> list[Row]:
            if first:
                raise first.pop()
            return self._send(statement, parameters)

        return self._keep_trying(again, patient=False)

    def run_in_one(self, *requests: Request, eager: bool = False) -> list[Row]:
        """Send statements in one round trip and one transaction, and return the rows of the last.

        Each statement sees what was committed when it began. Otherwise as `run`.
        """
        return self._keep_trying(lambda: self._ready().exchange(*requests, eager=eager)[-1], patient=False)

    def run_alone(self, statement: str) -> None:
        """Send a statement once that cannot share a transaction.

        A failure is not worth a retry. Behind a pooler, the time limits of its role apply. Raises nothing.
        """
        try:
            self._ready().exchange_alone(statement)
        except psycopg.Error as problem:
            if self._broken() or problem.sqlstate is None or is_unprepared(problem):
                self._note_lost(problem)
            else:
                _log.warning("the server rejects %s: %s", statement, problem, extra={"sqlstate": problem.sqlstate})

    def count(self, statement: str, parameters: Parameters) -> int:
        """Send a statement as `run` does, and return how many rows it changed."""
        self.run(statement, parameters)
        return self._wire.changed

    def run_both(self, first: str, before: Parameters, second: str, after: Parameters) -> tuple[Response, Response]:
        """Send two statements once, in one round trip, and return the rows or the error of each.

        Each is its own transaction: in one transaction, the second would hold its locks while the
        first waits for its fsync. Raises psycopg.Error if the session is lost, and opens no other,
        because a break hides what was executed, and for the reason given in `run_ahead`.
        """
        self._read_pending()
        try:
            one, two = self._opened().exchange_each((first, before), (second, after))
        except psycopg.Error as problem:
            if self._is_lost_by(problem):
                self._note_lost(problem)
            raise
        for response in (one, two):
            if isinstance(response, psycopg.Error) and self._is_lost_by(response):
                self._note_lost(response)
        return one, two

    def run_ahead(self, first: str, before: Parameters, second: str, after: Parameters) -> Response:
        """Send two statements as `run_both` does, and return the response to the first.

        `second_response` returns the other one, and every other use of this session waits for it
        first. Raises psycopg.Error if the session is lost, and opens no other. A crash of the
        server may have lost a claim of this session, and its token may be given to the claim that
        is sent together with its settlement. In that case `second_response` returns the error too.
        """
        self._read_pending()
        self._pending = True
        try:
            response = self._opened().exchange_ahead((first, before), (second, after))
        except (psycopg.Error, ValueError, OverflowError) as problem:
            if isinstance(problem, psycopg.Error) and (self._wire.is_pending or self._is_lost_by(problem)):
                self._note_lost(problem)
            self._give_up_pending(problem)
            raise
        if isinstance(response, psycopg.Error) and self._is_lost_by(response):
            self._read_pending()  # The second statement may have been executed all the same.
            self._note_lost(response)
        return response

    def second_response(self) -> list[Row] | Exception:
        """Wait for the second response to `run_ahead`, and return its rows or its error.

        The loss of the session counts as such an error.
        """
        self._read_pending()
        return self._second

    def requeue_unacknowledged(self) -> bool:
        """Release jobs that were claimed for this process and that it does not hold.

        Return whether there were any. Raises as `run`.
        """
        return bool(self._keep_trying(self._requeue_unacknowledged, patient=False))

    def is_registered(self) -> bool:
        """Return whether the database has this process under its number. Raises as `run`."""
        return bool(self.run("recover/find_child", {"child": self.child}))

    def _send(self, statement: str, parameters: Parameters | None = None) -> list[Row]:
        return self._ready().exchange((statement, parameters or {}))[0]

    def _opened(self) -> Wire:
        if self._broken():
            message = "the session has ended"
            raise psycopg.OperationalError(message)
        return self._wire
