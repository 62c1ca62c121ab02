"""Runs statements in the supervisor's only database session, through libpq and without blocking.

It connects, listens, sends one statement after the other and returns the answers by callback. `step` does
what is possible now and returns; the loop waits for the socket. If an answer does not come in time,
the session is dropped and opened again, with a back-off, without a limit on attempts.

It contains no policy, and nothing here may block. `connector.py` makes the connection,
`exchange.py` sends and reads.
"""

from __future__ import annotations

import selectors
from enum import Enum
from typing import TYPE_CHECKING, Final

from psycopg import pq

from jobherd.supervisor.database.connector import CONNECT_PATIENCE, ConnectError, Connector
from jobherd.supervisor.database.exchange import ANSWER_PATIENCE, Exchange
from jobherd.supervisor.database.notifications import Pooler, Rejected
from jobherd.supervisor.database.requests import Answer, Rejection, Request, Row
from jobherd.supervisor.database.session_setup import SessionSetup
from jobherd.workers.database.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.supervisor.database.notifications import Event

RETRY_PATIENCE: Final = 1.0
"""Maximum seconds between two attempts: the database's first answer ends every back-off."""


class Link(Enum):
    """The state of the connection."""

    AWAY = "away"
    NAMING = "naming"
    """A child resolves the host's name."""
    CONNECTING = "connecting"
    UP = "up"


class DatabaseConnection:
    """One asynchronous session. `answered` callbacks run inside `step` and may send again.

    Args:
        listens: the user has configured that LISTEN works with this DSN, even through a pooler.

    Attributes:
        link: the state.
        failures: how many times in a row the database was lost or did not answer.
        trouble: the reason of the last loss or failure, without secrets.
        write_problem: why the server accepts no writes, though it answers. The code that next writes
            successfully clears this.
        notifications: payloads of notifications since the caller last took them. Any login of the
            database may have written them.
        happened: events of the session itself since then.
    """

    peer: Final = "database"

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        application_name: str,
        retry_initial: float,
        retry_max: float,
        listens: bool = False,
    ) -> None:
        self.link = Link.AWAY
        self.failures = 0
        self.trouble = ""
        self.write_problem = ""
        self.notifications: list[str] = []
        self.happened: list[Event] = []
        self._schema = schema
        self._backoff = Backoff(retry_initial, min(retry_max, RETRY_PATIENCE), spread=(0.8, 1.0))
        self._connector = Connector(dsn, application_name=application_name)
        self._exchange = Exchange()
        self.setup = SessionSetup(self._exchange, schema, listens=listens)
        self._pooler_noted = False
        self._again_at = 0.0
        """When the next attempt is due."""

    # -- queries by the loop

    @property
    def epoch(self) -> int:
        """The number of the session. It grows, because a new socket may have an old one's file number."""
        return self._connector.epoch

    @property
    def answered_at(self) -> float:
        """When the last answer was complete."""
        return self._exchange.answered_at

    @property
    def wants_addresses(self) -> list[str]:
        """The host names that must be resolved before the next step."""
        return self._connector.names if self.link is Link.NAMING else []

    def fileno(self) -> int:
        """Return the socket to wait on, or -1."""
        return self._connector.fileno() if self.link in (Link.CONNECTING, Link.UP) else -1

    def events(self) -> int:
        """Return the events to wait for on the socket."""
        if self.link is Link.CONNECTING:
            return self._connector.events()
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._exchange.wants_write else 0)

    @property
    def is_quiet(self) -> bool:
        """Whether the session is up and no statement is under way."""
        return self.link is Link.UP and self._exchange.is_quiet

    @property
    def polls(self) -> bool:
        """Whether the session is usable but receives no notifications."""
        setup = self.setup
        return self.link is Link.UP and ((setup.pooled and setup.listen_disabled) or bool(setup.listen_error))

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self.link is Link.UP:
            return self._exchange.wake_at(now)
        return self._again_at if self.link is Link.AWAY else self._connector.give_up_at

    # -- requests by the loop

    def ask(
        self,
        name: str,
        parameters: Mapping[str, object],
        answered: Callable[[Answer], None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Send the statement `name` when its turn comes.

        Without a session, the answer is None at the next step.

        Args:
            name: the statement.
            parameters: its parameters.
            answered: called with the answer, or with None.
            refused: called instead if the server permanently rejects the statement. Other
                rejections are None too.
        """
        self._exchange.queue.append(Request.of(name, parameters, answered, refused, schema=self._schema))

    def addressed(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """Continue with the resolved addresses by host; a host without any is left out."""
        if self.link is Link.NAMING:
            self._set_out(addresses, now)

    def lose(self, why: str, now: float) -> None:
        """Give up the session, and answer None to all requests. The next attempt follows a back-off."""
        self.trouble = why.strip().splitlines()[0] if why.strip() else "the connection was lost"
        self.write_problem = ""  # the next server, or this one after its return, may accept writes
        self._connector.close()
        self.link = Link.AWAY
        self.failures += 1
        self._again_at = now + self._backoff.next()
        for request in self._exchange.end():
            request.answered(None)

    def step(self, now: float) -> None:
        """Do what is possible without blocking."""
        if self.link is Link.AWAY and now >= self._again_at:
            self._connector.begin(now)
            self.link = Link.NAMING
            if not self._connector.names:
                self._set_out({}, now)
        if self.link is Link.NAMING and now >= self._connector.give_up_at:
            self.lose(f"no address of {', '.join(self.wants_addresses)} within {CONNECT_PATIENCE:.0f} s", now)
        if self.link is Link.CONNECTING:
            self._connect(now)
        if self.link is Link.UP:
            self._exchange_requests(now)
        if self.link is Link.AWAY:
            for request in self._exchange.end():
                request.answered(None)

    def close(self) -> None:
        """Close the session, if there is one."""
        self._connector.close()
        self.link = Link.AWAY

    def forget(self) -> int:
        """Return the socket's number in a forked child, which closes it.

        The session itself stays the supervisor's.
        """
        conn = self._connector.conn
        return conn.socket if conn is not None and conn.status != pq.ConnStatus.BAD else -1

    # -- connecting

    def _set_out(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        self.link = Link.CONNECTING
        try:
            self._connector.set_out(addresses, now)
        except ConnectError as problem:
            self.lose(str(problem), now)

    def _connect(self, now: float) -> None:
        try:
            if not self._connector.step(now):
                return
        except ConnectError as problem:
            self.lose(str(problem), now)
            return
        assert self._connector.conn is not None  # the connector has just made it
        self.link = Link.UP
        self._pooler_noted = False
        self._exchange.begin()
        self.setup.begin(self._connector.conn)

    # -- exchange

    def _exchange_requests(self, now: float) -> None:
        conn = self._connector.conn
        if conn is None:
            return
        try:
            for request, reply in self._exchange.step(conn, now):
                self._take(request, reply, now)
                if self.link is not Link.UP:
                    return
                self._note_setup()
        except Exception as problem:  # psycopg raises OperationalError for whatever libpq reports
            self.lose(str(problem), now)
            return
        finally:
            self.notifications += self._exchange.notified
            self._exchange.notified.clear()
        if overdue := self._exchange.overdue(now):
            self.lose(f"no answer to {overdue} within {ANSWER_PATIENCE:.0f} s", now)

    def _note_setup(self) -> None:
        if self.setup.pooled and not self._pooler_noted:
            self._pooler_noted = True
            self.happened.append(Pooler())
        if self.setup.complete and self.failures:
            self.failures, self.trouble = 0, ""
            self._backoff.reset()

    def _take(self, request: Request, reply: list[Row] | Rejection, now: float) -> None:
        if not isinstance(reply, Rejection):
            request.answered(reply)
            return
        if reply.unfound:
            self.setup.set_timeouts()  # the rejected statement is sent again after it
        self.write_problem = reply.write_problem or self.write_problem
        if not self.write_problem:
            self.happened.append(Rejected(request.name, reply.text))
        if request.refused is not None and reply.permanent:
            request.refused()
        else:
            request.answered(None)
        if reply.read_only and self.link is Link.UP:
            self.lose(f"the server takes no writes: {reply.text}", now)
