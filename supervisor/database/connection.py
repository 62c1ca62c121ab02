"""The supervisor's only session with PostgreSQL, through libpq and without blocking.

It connects, listens, sends one statement after the other and passes on the answers. `step` does
what is possible now and returns; the loop waits for the socket. If an answer does not come in time,
the session is dropped and opened again, with a back-off, without a limit on attempts.

It contains no policy, and nothing here may block. libpq blocks while it resolves host names, so it
only gets addresses, which a short-lived child has resolved (`spawn.Lookup`). It gets one address at
a time: with several it would stay with the first that does not answer.
"""

from __future__ import annotations

import random
import select
import selectors
import socket
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from psycopg import conninfo, pq

from jobherd import sql
from jobherd.sql.parameters import as_text
from jobherd.supervisor.database.hosts import Servers
from jobherd.supervisor.database.notifications import Pooler, Rejected
from jobherd.workers.database.errors import NO_TRANSACTION, is_used_up
from jobherd.workers.database.pooler import is_pooled
from jobherd.workers.database.response_check import Answers
from jobherd.workers.system import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg.pq.abc import PGconn

    from jobherd.supervisor.database.notifications import Event

Row = tuple[str | None, ...]
Answer = list[Row] | None
"""The rows, as text; None if the session was lost before the answer, or the server rejected the
statement."""

CONNECT_PATIENCE: Final = 10.0
"""Seconds for a connection, for all servers of the DSN together, unless it has a `connect_timeout`
for each."""
LEAST_PATIENCE: Final = 2.0
"""Minimum seconds for each of them, however many there are."""
ANSWER_PATIENCE: Final = 10.0
"""Seconds without an answer after which the session counts as dead."""
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
_FOR_GOOD: Final = frozenset({b"22", b"23", b"54"})
"""Classes of errors that no later attempt changes: bad data, a violated constraint, a limit of the
server."""
_UNFOUND: Final = frozenset({b"42883", b"42P01"})
"""A function or table does not exist. It may belong to a trigger that the application has just
created, whose names are not in pg_catalog."""
_READ_ONLY: Final = b"25006"
"""A standby, or a primary that was made read-only: another host of the DSN may be the primary by
now."""


class Link(Enum):
    """The state of the connection."""

    AWAY = "away"
    NAMING = "naming"
    """A child resolves the host's name."""
    CONNECTING = "connecting"
    UP = "up"


@dataclass(slots=True)
class Request:
    """A statement that is sent or queued."""

    name: str
    text: bytes
    parameters: list[bytes | None]
    answered: Callable[[Answer], None]
    refused: Callable[[], None] | None = None
    give_up_at: float = float("inf")
    prepares: bool = False
    """It only prepares the statement."""


class DatabaseConnection:
    """One asynchronous session. `answered` callbacks run inside `step` and may send again.

    Args:
        listens: the user says that LISTEN works with this DSN, even through a pooler.
    """

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
        self._given = conninfo.conninfo_to_dict(dsn)
        self._application_name = application_name
        self._schema = schema
        self._listens = listens
        self._retry = (retry_initial, retry_max)
        self._conn: PGconn | None = None
        self._queue: deque[Request] = deque()
        self._sent: Request | None = None
        self._rows: list[Row] = []
        self._refused: str | None = None
        self._refused_for_good = False
        self._misplaced = False
        self._is_last = False
        """The server ended the session with that rejection."""
        self._prepared: set[str] = set()
        self._answers = Answers()
        self._failures = 0
        self._at = 0.0
        """When the next attempt is due (AWAY), or the current one is given up (NAMING, CONNECTING)."""
        self._poll = pq.PollingStatus.OK
        self._named = Servers(self._given)
        """The servers of the DSN, read again for each attempt: the file of services may change."""
        self._servers: deque[dict[str, str]] = deque()
        """Servers still to be tried, as host, hostaddr and port."""
        self._share = CONNECT_PATIENCE
        self._refusals: list[str] = []
        """Why the servers tried so far failed."""
        self.link = Link.AWAY
        self.epoch = 0
        """Grows with each session: a new socket may have an old one's number."""
        self.pooled = False
        """A pooler is between this session and the server: it may give each transaction another
        backend."""
        self.deaf = False
        """LISTEN is not used, because of a pooler. pgbouncer 1.18 mistakes a notification on a
        shared backend, while it prepares that for the next client, for the end of an answer. From
        then on every client gets the answers of another."""
        self.listening = False
        """The server has accepted LISTEN in this session."""
        self.unheard = ""
        """Why the server has rejected LISTEN; `listen` tries it again."""
        self.trouble = ""
        """The reason of the last loss or failure, without secrets."""
        self.answered_at = 0.0
        """When the last answer was complete."""
        self.barred = ""
        """Why the server accepts no writes, though it answers. The code that next writes
        successfully clears this."""
        self.notifications: list[str] = []
        """Payloads of notifications since the caller last took them. Any login of the database may
        have written them."""
        self.happened: list[Event] = []
        """Events of the session itself since then."""

    # -- queries by the loop

    @property
    def failures(self) -> int:
        """How many times in a row the database was lost or did not answer."""
        return self._failures

    @property
    def wants_addresses(self) -> list[str]:
        """The host names that must be resolved before the next step."""
        return self._named.names if self.link is Link.NAMING else []

    def fileno(self) -> int:
        """Return the socket to wait on, or -1."""
        return self._conn.socket if self._conn is not None and self.link in (Link.CONNECTING, Link.UP) else -1

    def events(self) -> int:
        """Return the events to wait for on the socket."""
        if self.link is Link.CONNECTING:
            return selectors.EVENT_WRITE if self._poll is pq.PollingStatus.WRITING else selectors.EVENT_READ
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unflushed else 0)

    @property
    def is_quiet(self) -> bool:
        """Whether the session is up and no statement is under way."""
        return self.link is Link.UP and self._sent is None and not self._queue

    @property
    def polls(self) -> bool:
        """Whether the session is usable but receives no notifications."""
        return self.link is Link.UP and ((self.pooled and self.deaf) or bool(self.unheard))

    def wake_at(self) -> float:
        """Return when `step` must be called at the latest."""
        if self.link is Link.UP:
            if self._sent is None and self._queue:
                return 0.0  # queued after the last step: no socket event would cause it to be sent
            return self._sent.give_up_at if self._sent is not None else float("inf")
        return self._at

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
        text, order = sql.numbered(name, self._schema)
        try:
            values = [as_text(parameters[key]) for key in order]
        except ValueError:  # text of a dead child that PostgreSQL rejects: it must not crash the supervisor
            values = [as_text(_harmless(parameters[key])) for key in order]
        self._queue.append(Request(name, text.encode(), values, answered, refused))

    def addressed(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """Continue with the resolved addresses by host; a host without any is left out."""
        if self.link is Link.NAMING:
            self._set_out(addresses, now)

    def listen(self) -> None:
        """Send LISTEN for the queue."""
        self.ask("wake/listen_jobs", {}, self._listening)

    def lose(self, why: str, now: float) -> None:
        """Give up the session: it is up, but an expected notification does not arrive."""
        self._lose(why, now)

    def step(self, now: float) -> None:
        """Do what is possible without blocking."""
        if self.link is Link.AWAY and now >= self._at:
            self._begin(now)
        if self.link is Link.NAMING and now >= self._at:
            self._lose(f"no address of {', '.join(self.wants_addresses)} within {CONNECT_PATIENCE:.0f} s", now)
        if self.link is Link.CONNECTING and now >= self._at:
            self._fail(f"no connection to {self._where} within {self._share:g} s", now)
        if self.link is Link.CONNECTING:
            self._advance(now)
        if self.link is Link.UP:
            self._exchange(now)
        if self.link is not Link.UP and self._queue and self.link is Link.AWAY:
            lost, self._queue = self._queue, deque()
            for letter in lost:
                letter.answered(None)

    def close(self) -> None:
        """Close the session, if there is one."""
        if self._conn is not None:
            self._conn.finish()
            self._conn = None
        self.link = Link.AWAY

    def forget(self) -> int:
        """Called in a forked child: return the socket's number, which the child closes.

        The session itself stays the supervisor's.
        """
        return self._conn.socket if self._conn is not None and self._conn.status != pq.ConnStatus.BAD else -1

    # -- helpers

    def _begin(self, now: float) -> None:
        self._at = now + CONNECT_PATIENCE
        self._named = Servers(self._given)
        if self._named.names:
            self.link = Link.NAMING
        else:
            self._set_out({}, now)

    def _set_out(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """Try the servers of the DSN one after the other, and each address of a name."""
        self._servers = deque(self._named.found(addresses))
        if self._given.get("load_balance_hosts") == "random":
            random.shuffle(self._servers)
        asked = str(self._given.get("connect_timeout") or "")
        self._share = (
            float(asked)
            if asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked)
            else max(CONNECT_PATIENCE / max(len(self._servers), 1), LEAST_PATIENCE)
        )
        self._refusals = []
        self._fail("" if self._servers else f"no address is known for {', '.join(self._named.names)}", now)

    def _fail(self, why: str, now: float) -> None:
        """This server failed: try the next one, or back off after the last."""
        if why:
            self._refusals.append(why.strip().splitlines()[0])
        while self._servers:
            if self._conn is not None:
                self._conn.finish()
            if self._connect(self._servers.popleft(), now):
                return
            self._refusals.append(self._message())
        self._lose("; ".join(dict.fromkeys(self._refusals)), now)

    @property
    def _where(self) -> str:
        host, port = (self._conn.host.decode(), self._conn.port.decode()) if self._conn is not None else ("", "")
        return f"{host} port {port}" if host else "the server"

    def _connect(self, where: Mapping[str, str], now: float) -> bool:
        given = {key: value for key, value in self._given.items() if key not in where}
        given |= {key: value for key, value in where.items() if value}
        given.setdefault("keepalives_idle", "10")
        given.setdefault("keepalives_interval", "3")
        given.setdefault("keepalives_count", "3")
        given.setdefault("tcp_user_timeout", "10000")
        given.setdefault("target_session_attrs", "read-write")  # a standby accepts no LISTEN and no renewal
        given.setdefault("gssencmode", "disable")  # the GSSAPI library contacts a server of its own, and blocks
        given["application_name"] = self._application_name
        given["client_encoding"] = "UTF8"
        given.pop("connect_timeout", None)
        self._conn = pq.PGconn.connect_start(conninfo.make_conninfo("", **given).encode())
        self.link = Link.CONNECTING
        self._at = now + self._share
        self._poll = pq.PollingStatus.WRITING
        self.epoch += 1
        return self._conn.status != pq.ConnStatus.BAD

    def _advance(self, now: float) -> None:
        conn = self._conn
        if conn is None or not _is_ready(conn.socket, self._poll):
            return
        self._poll = pq.PollingStatus(conn.connect_poll())
        self.epoch += 1  # a new attempt without TLS uses a new socket, which may have the old one's number
        if self._poll is pq.PollingStatus.FAILED:
            self._fail(self._message(), now)
        elif self._poll is pq.PollingStatus.OK:
            conn.nonblocking = 1
            self.link = Link.UP
            self._sent, self._misplaced, self._is_last = None, False, False
            self._prepared, self._answers = set(), Answers()
            self.pooled, self.deaf = False, True  # until the backend is known
            self.listening, self.unheard = False, ""
            waiting, self._queue = self._queue, deque()
            self.ask("session/show_backend", {}, self._met)
            self._queue.extend(waiting)

    def _met(self, answer: Answer) -> None:
        """Set up the session once the backend is known, before the queued statements."""
        if answer is None or self._conn is None:
            return
        self.pooled = is_pooled(self._conn, answer[0][0] or 0)
        self.deaf = self.pooled and not self._listens
        waiting, self._queue = self._queue, deque()
        # otherwise other clients of the pooler would get these limits with the backend, and this
        # session their prepared statements
        if not self.pooled:
            self._steer()
        if self.pooled:
            self.happened.append(Pooler())
        if self.deaf:
            self._is_served()
        else:
            self.listen()
        self._queue.extend(waiting)
        # After the queued statements: on a slow line each takes half a second, and a renewal may be
        # among them.
        if not self.pooled:
            self.ask("session/enable_keepalives", {}, self._steered)
            for name in URGENT:
                self._queue.append(
                    Request(
                        name,
                        sql.numbered(name, self._schema)[0].encode(),
                        [],
                        partial(self._note_prepared, name),
                        prepares=True,
                    )
                )

    def _steer(self) -> None:
        self.ask(
            "session/set_supervisor_timeouts",
            {"patience": f"{SERVER_PATIENCE_MS}ms", "locks": f"{LOCK_PATIENCE_MS}ms"},
            self._steered,
        )

    def _steered(self, answer: Answer) -> None:
        """Do nothing: a rejection is logged, and the session works without these settings."""

    def _note_prepared(self, name: str, answer: Answer) -> None:
        if answer is not None:
            self._prepared.add(name)

    def _listening(self, answer: Answer) -> None:
        if answer is None and (self.link is not Link.UP or self._misplaced or self._is_last):
            return  # there is no session to continue with
        self.listening = answer is not None
        self.unheard = "" if self.listening else self._refused or "it does not say why"
        self._is_served()

    def _is_served(self) -> None:
        self._failures = 0
        self.trouble = ""

    @property
    def _unflushed(self) -> bool:
        return self._flushing

    _flushing = False

    def _exchange(self, now: float) -> None:
        conn = self._conn
        if conn is None:
            return
        try:
            conn.consume_input()
            if self._flushing:
                self._flushing = bool(conn.flush())
            while True:
                whole = self._sent is None or self._finish(conn, now)
                # Reading an answer may have consumed a notification from the socket, which no
                # longer shows it. So check after each answer, including the last one.
                while (notified := conn.notifies()) is not None:
                    self.notifications.append(notified.extra.decode(errors="replace"))
                if not whole:
                    break
                if self._misplaced:
                    self._lose(f"the server takes no writes: {self._refused}", now)
                    return
                if not self._queue:
                    break
                letter = self._queue.popleft()
                letter.give_up_at = now + ANSWER_PATIENCE
                self._sent, self._rows, self._refused = letter, [], None
                if failpoints.armed:
                    failpoints.reach(f"parent:{letter.name.rpartition('/')[2]}.before")
                if letter.prepares:
                    conn.send_prepare(letter.name.encode(), letter.text)
                elif letter.name in self._prepared:
                    conn.send_query_prepared(letter.name.encode(), letter.parameters)
                else:
                    conn.send_query_params(letter.text, letter.parameters)
                self._flushing = bool(conn.flush())
                if failpoints.armed:
                    failpoints.reach(f"parent:{letter.name.rpartition('/')[2]}.sent")
        except Exception as problem:  # psycopg raises OperationalError for whatever libpq reports
            self._lose(str(problem), now)
            return
        if self._sent is not None and now >= self._sent.give_up_at:
            self._lose(f"no answer to {self._sent.name} within {ANSWER_PATIENCE:.0f} s", now)

    def _finish(self, conn: PGconn, now: float) -> bool:
        """Read the answer as far as it has arrived; return whether it is complete."""
        while not conn.is_busy():
            result = conn.get_result()
            if result is None:
                letter, self._sent = self._sent, None
                self.answered_at = now
                if letter is not None:
                    if failpoints.armed:
                        failpoints.reach(f"parent:{letter.name.rpartition('/')[2]}.done")
                    if self._refused is not None and not self.barred:
                        self.happened.append(Rejected(letter.name, self._refused))
                    if self._refused is not None and letter.refused is not None and self._refused_for_good:
                        letter.refused()
                    else:
                        letter.answered(None if self._refused is not None else self._rows)
                return True
            if self.pooled and self._sent is not None:
                self._answers.check(self._sent.name, result)
            if result.status == pq.ExecStatus.TUPLES_OK:
                self._rows = [
                    tuple(_read(result.get_value(row, column)) for column in range(result.nfields))
                    for row in range(result.ntuples)
                ]
            elif result.status != pq.ExecStatus.COMMAND_OK:
                state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
                by = (result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b"").decode(errors="replace")
                if (
                    state in _UNFOUND
                    and not self.pooled
                    and not any(letter.name == "session/set_supervisor_timeouts" for letter in self._queue)
                ):
                    self._steer()  # the rejected statement is sent again after it
                self._refused_for_good = state[:2] in _FOR_GOOD and not is_used_up(by)
                self._misplaced = state == _READ_ONLY
                self._is_last = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) != b"ERROR"
                self._refused = result.error_message.decode(errors="replace").strip().splitlines()[0]
                if by == NO_TRANSACTION:
                    words = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
                    self.barred = f"it takes no writes: {words.decode(errors='replace')}"
        return False

    def _message(self) -> str:
        text = self._conn.error_message.decode(errors="replace") if self._conn is not None else ""
        # Indented lines are guesses at the reason; a detail or hint says nothing without its error.
        lines = [
            line
            for line in text.splitlines()
            if line and not line[0].isspace() and not line.startswith(("DETAIL:", "HINT:"))
        ]
        return lines[-1] if lines else _unsaid()

    def _lose(self, why: str, now: float) -> None:
        self.trouble = why.strip().splitlines()[0] if why.strip() else "the connection was lost"
        self.barred = ""  # the next server, or this one after its return, may accept writes
        if self._conn is not None:
            self._conn.finish()
        self._conn = None
        self.link = Link.AWAY
        self._flushing = False
        initial, most = self._retry
        # While the database is down, try at least every second: its first answer ends every
        # back-off.
        delay = min(initial * 2 ** min(self._failures, 20), most, 1.0)
        self._failures += 1
        self._at = now + delay * random.uniform(0.8, 1.0)
        lost = [self._sent] if self._sent is not None else []
        lost.extend(self._queue)
        self._sent, self._queue = None, deque()
        for letter in lost:
            letter.answered(None)


def _unsaid() -> str:
    """Return why there is no connection if libpq does not report it: it got no socket."""
    try:
        socket.socket(socket.AF_UNIX).close()
    except OSError as problem:
        return f"the connection failed: {problem.strerror}"
    return "the connection failed"


def _is_ready(fd: int, wanted: pq.PollingStatus) -> bool:
    """Return whether the socket is in the state that libpq waits for.

    Called earlier, libpq takes the connection for established and blocks until it is: for a host
    that is gone, that takes long.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT if wanted is pq.PollingStatus.WRITING else select.POLLIN)
    return bool(poll.poll(0))


def _harmless(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return [_harmless(item) for item in value] if isinstance(value, list | tuple) else value


def _read(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
