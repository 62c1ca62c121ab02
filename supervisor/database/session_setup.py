"""Sets up a new session before its first request: time limits, LISTEN, prepared statements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jobherd import sql
from jobherd.supervisor.database.requests import Answer, Rejection, Request
from jobherd.workers.database.pooler import is_pooled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.pq.abc import PGconn

    from jobherd.supervisor.database.exchange import Exchange

SERVER_PATIENCE_MS: Final = 5000
"""Milliseconds after which the server cancels a statement, before the supervisor gives up the
session."""
LOCK_PATIENCE_MS: Final = 2500
"""Milliseconds after which the server cancels a wait for a lock, before a renewal's echo is
overdue. Otherwise each new session would wait for the same lock, be given up, and wake every
worker, every few seconds."""
URGENT: Final = ("recover/terminate_child_sessions", "settle/settle_jobs", "recover/requeue_child")
"""Statements that jobs wait for after a child's death. They are prepared, since planning takes
longer than running them."""
_SET_TIMEOUTS: Final = "session/set_supervisor_timeouts"


class SessionSetup:
    """Sets up a session, and stores what the set-up has shown.

    Attributes:
        pooled: a pooler is between this session and the server: it may give each transaction
            another backend.
        listen_disabled: LISTEN is not used, because of a pooler. pgbouncer 1.18 mistakes a notification on a
            shared backend, while it prepares that for the next client, for the end of an answer.
            From then on every client gets the answers of another.
        listening: the server has accepted LISTEN in this session.
        listen_error: why the server has rejected LISTEN; `listen` tries it again.
        complete: the session can be used: LISTEN was answered, or is not used.
    """

    def __init__(self, exchange: Exchange, schema: str, *, listens: bool) -> None:
        self.pooled = False
        self.listen_disabled = False
        self.listening = False
        self.listen_error = ""
        self.complete = False
        self._exchange = exchange
        self._schema = schema
        self._listens = listens

    def begin(self, conn: PGconn) -> None:
        """Set up a new session before its queued statements."""
        self.pooled, self.listen_disabled = False, True  # until the backend has answered
        self.listening, self.listen_error, self.complete = False, "", False
        waiting = self._exchange.put_first()
        self._ask("session/show_backend", {}, partial(self._met, conn))
        self._exchange.queue.extend(waiting)

    def listen(self) -> None:
        """Send LISTEN for the queue."""
        self._ask("wake/listen_jobs", {}, self._listening)

    def set_timeouts(self) -> None:
        """Set the time limits of the session, unless that is queued. It also sets the search path."""
        if not self.pooled and all(each.name != _SET_TIMEOUTS for each in self._exchange.queue):
            limits = {"patience": f"{SERVER_PATIENCE_MS}ms", "locks": f"{LOCK_PATIENCE_MS}ms"}
            self._ask(_SET_TIMEOUTS, limits, _ignore)

    def _ask(self, name: str, parameters: Mapping[str, object], answered: Callable[[Answer], None]) -> None:
        self._exchange.queue.append(Request.of(name, parameters, answered, schema=self._schema))

    def _met(self, conn: PGconn, answer: Answer) -> None:
        if answer is None:
            return
        self.pooled = self._exchange.checks_replies = is_pooled(conn, answer[0][0] or 0)
        self.listen_disabled = self.pooled and not self._listens
        waiting = self._exchange.put_first()
        # otherwise other clients of the pooler would get these limits with the backend, and this
        # session their prepared statements
        self.set_timeouts()
        if self.listen_disabled:
            self.complete = True
        else:
            self.listen()
        self._exchange.queue.extend(waiting)
        # After the queued statements: on a slow line each takes half a second, and a renewal may be
        # among them.
        if not self.pooled:
            self._ask("session/enable_keepalives", {}, _ignore)
            for name in URGENT:
                text = sql.numbered(name, self._schema)[0].encode()
                self._exchange.queue.append(Request(name, text, [], partial(self._prepared, name), prepares=True))

    def _prepared(self, name: str, answer: Answer) -> None:
        if answer is not None:
            self._exchange.prepared.add(name)

    def _listening(self, answer: Answer) -> None:
        rejection = self._exchange.reply if isinstance(self._exchange.reply, Rejection) else None
        if answer is None and (rejection is None or rejection.read_only or rejection.ends_session):
            return  # there is no session to continue with
        self.listening = answer is not None
        self.listen_error = "" if self.listening or rejection is None else rejection.text or "no reason given"
        self.complete = True


def _ignore(answer: Answer) -> None:
    """Do nothing: a rejection is logged, and the session works without these settings."""
