"""The parent's one session with PostgreSQL, spoken through libpq without ever waiting.

It connects, listens, sends one statement after the other and hands the answers to whoever asked. Everything is driven by `step`, which
does what can be done now and returns; the loop waits for the socket. What does not come within its time is given up: the session is
dropped and made anew, with a back-off, for ever. Nothing of policy stands here, and nothing here may block: libpq looks up host names by
itself, and blocks, so it is only ever given addresses, which a short-lived child has found (`spawn.Lookup`), and one at a time: of several
it would stay with the first that is silent.
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
from jobherd.workers.database.response_check import Answers
from jobherd.workers.system import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg.pq.abc import PGconn

    from jobherd.supervisor.database.notifications import Event

Row = tuple[str | None, ...]
Answer = list[Row] | None
"""The rows, as text; None when the session was lost before the answer came, or the server refused."""

CONNECT_PATIENCE: Final = 10.0
"""Seconds for a connection, all servers that the DSN names together, unless it says `connect_timeout` for each."""
LEAST_PATIENCE: Final = 2.0
"""Seconds that each of them gets, however many there are."""
ANSWER_PATIENCE: Final = 10.0
"""Seconds without an answer after which a session is taken for dead."""
SERVER_PATIENCE_MS: Final = 5000
"""The server gives up a statement of ours by itself before we give up the session."""
LOCK_PATIENCE_MS: Final = 2500
"""And one that waits for a lock sooner than a beat must be heard: a session that is given up for that is followed by one that waits for the same lock,
every few seconds, and calls every worker each time."""
URGENT: Final = ("end_backend", "settle_jobs", "release_child")
"""What somebody waits for when a child has died: prepared, for planning takes longer than running."""
_FOR_GOOD: Final = frozenset({b"22", b"23", b"54"})
"""Classes of refusals that no later try changes: bad data, a broken constraint, a limit of the server."""
_UNFOUND: Final = frozenset({b"42883", b"42P01"})
"""A function or table that does not exist: perhaps for a trigger that an application has just made, whose names are not in pg_catalog."""
_READ_ONLY: Final = b"25006"
"""A standby, or a primary that was made read-only: of the hosts of the DSN another may be the primary by now."""


class Link(Enum):
    """How far the session is."""

    AWAY = "away"
    NAMING = "naming"
    """A child looks up the host's address."""
    CONNECTING = "connecting"
    UP = "up"


@dataclass(slots=True)
class Request:
    """A statement on its way."""

    name: str
    text: bytes
    parameters: list[bytes | None]
    answered: Callable[[Answer], None]
    refused: Callable[[], None] | None = None
    give_up_at: float = float("inf")
    prepares: bool = False
    """It only makes the statement ready for later."""


class DatabaseConnection:
    """One asynchronous session. `answered` callbacks run inside `step` and may send again.

    listens: it is said of this DSN that one can listen there, whatever stands between.
    """

    def __init__(
        self, dsn: str, *, schema: str, application_name: str, retry_initial: float, retry_max: float, listens: bool = False
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
        """What was refused was so with the session's last word."""
        self._prepared: set[str] = set()
        self._answers = Answers()
        self._failures = 0
        self._at = 0.0
        """When the next try is due (AWAY), or the present one is given up (NAMING, CONNECTING)."""
        self._poll = pq.PollingStatus.OK
        self._named = Servers(self._given)
        """Those that the DSN names, as of this try: a service is a line of a file."""
        self._servers: deque[dict[str, str]] = deque()
        """Those that are still to be tried, as host, hostaddr and port."""
        self._share = CONNECT_PATIENCE
        self._refusals: list[str] = []
        """Why those that were tried are not it."""
        self.link = Link.AWAY
        self.epoch = 0
        """Grows with each session: a new socket may have an old one's number."""
        self.pooled = False
        """A pooler stands between us and the server: it may give each transaction another backend."""
        self.deaf = False
        """So nothing is listened to: what a shared backend is notified of while the pooler prepares it for the next client, pgbouncer 1.18 takes
        for the end of an answer, and from then on everybody gets that of somebody else."""
        self.listening = False
        """The server has granted LISTEN in this session."""
        self.unheard = ""
        """Why it has refused it; `listen` asks for it again."""
        self.trouble = ""
        """The last reason for being away, without secrets."""
        self.answered_at = 0.0
        """When the last answer was whole."""
        self.barred = ""
        """Why the server takes no writes, though it answers; whoever writes and succeeds takes this back."""
        self.notifications: list[str] = []
        """The payloads that were notified since the caller last took them. Any login of the database may have written them."""
        self.happened: list[Event] = []
        """What happened to the session itself since then."""

    # -- what the loop asks -----------------------------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """How often in a row the database was lost or did not answer."""
        return self._failures

    @property
    def wants_addresses(self) -> list[str]:
        """The host names that must be looked up before anything else can happen."""
        return self._named.names if self.link is Link.NAMING else []

    def fileno(self) -> int:
        """The socket to wait on, or -1."""
        return self._conn.socket if self._conn is not None and self.link in (Link.CONNECTING, Link.UP) else -1

    def events(self) -> int:
        """What to wait for on the socket."""
        if self.link is Link.CONNECTING:
            return selectors.EVENT_WRITE if self._poll is pq.PollingStatus.WRITING else selectors.EVENT_READ
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unflushed else 0)

    @property
    def is_quiet(self) -> bool:
        """Whether the session is up and nothing is asked."""
        return self.link is Link.UP and self._sent is None and not self._queue

    @property
    def polls(self) -> bool:
        """Whether the session is to go on though it hears nothing."""
        return self.link is Link.UP and ((self.pooled and self.deaf) or bool(self.unheard))

    def wake_at(self) -> float:
        """When `step` must be called at the latest."""
        if self.link is Link.UP:
            if self._sent is None and self._queue:
                return 0.0  # asked since the last step, for what came with that: no socket would wake us for it
            return self._sent.give_up_at if self._sent is not None else float("inf")
        return self._at

    # -- what the loop tells ----------------------------------------------------------------------------------------

    def ask(
        self, name: str, parameters: Mapping[str, object], answered: Callable[[Answer], None], refused: Callable[[], None] | None = None
    ) -> None:
        """Send the statement `name` when its turn comes. Without a session the answer is None, at the next step.

        refused: called instead of `answered` if the server refuses what the statement says, and would again; other refusals are None too.
        """
        text, order = sql.numbered(name, self._schema)
        try:
            values = [as_text(parameters[key]) for key in order]
        except ValueError:  # words of a dead child: the parent must not fall over them
            values = [as_text(_harmless(parameters[key])) for key in order]
        self._queue.append(Request(name, text.encode(), values, answered, refused))

    def addressed(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """The look-up has ended with these addresses by host; a host that has none is left out."""
        if self.link is Link.NAMING:
            self._set_out(addresses, now)

    def listen(self) -> None:
        """Ask to hear the queue."""
        self.ask("listen_jobs", {}, self._listening)

    def lose(self, why: str, now: float) -> None:
        """Give the session up: it is up, but what should come does not come."""
        self._lose(why, now)

    def step(self, now: float) -> None:
        """Do what can be done without waiting."""
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
        """End the session, if there is one."""
        if self._conn is not None:
            self._conn.finish()
            self._conn = None
        self.link = Link.AWAY

    def forget(self) -> int:
        """Called in a forked child: the socket's number, which the child closes. The session itself is the parent's."""
        return self._conn.socket if self._conn is not None and self._conn.status != pq.ConnStatus.BAD else -1

    # -- parts ------------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._at = now + CONNECT_PATIENCE
        self._named = Servers(self._given)
        if self._named.names:
            self.link = Link.NAMING
        else:
            self._set_out({}, now)

    def _set_out(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """Try the servers that the DSN names, one after the other; those that a name stands for too."""
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
        """This server is not it: the next, or a rest if that was the last."""
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
        given.setdefault("target_session_attrs", "read-write")  # a standby takes no LISTEN and no beat
        given.setdefault("gssencmode", "disable")  # its library asks a server of its own, and waits
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
        self.epoch += 1  # without TLS after all: on a new socket, which may have the number of the old one
        if self._poll is pq.PollingStatus.FAILED:
            self._fail(self._message(), now)
        elif self._poll is pq.PollingStatus.OK:
            conn.nonblocking = 1
            self.link = Link.UP
            self._sent, self._misplaced, self._is_last = None, False, False
            self._prepared, self._answers = set(), Answers()
            self.pooled, self.deaf = False, True  # until we know who serves us
            self.listening, self.unheard = False, ""
            waiting, self._queue = self._queue, deque()
            self.ask("tell_backend", {}, self._met)
            self._queue.extend(waiting)

    def _met(self, answer: Answer) -> None:
        """We know who serves us: what makes the session ours comes before all that waits."""
        if answer is None or self._conn is None:
            return
        self.pooled = answer[0][0] != str(self._conn.backend_pid)
        self.deaf = self.pooled and not self._listens
        waiting, self._queue = self._queue, deque()
        if not self.pooled:  # else others would get our time limits with the backend, and we their statements
            self._steer()
        if self.pooled:
            self.happened.append(Pooler())
        if self.deaf:
            self._is_served()
        else:
            self.listen()
        self._queue.extend(waiting)
        if not self.pooled:  # and this after what waits: on a slow line, where each letter takes half a second, a beat may be among that
            self.ask("watch_client", {}, self._steered)
            for name in URGENT:
                self._queue.append(
                    Request(name, sql.numbered(name, self._schema)[0].encode(), [], partial(self._note_prepared, name), prepares=True)
                )

    def _steer(self) -> None:
        self.ask("steer_parent", {"patience": f"{SERVER_PATIENCE_MS}ms", "locks": f"{LOCK_PATIENCE_MS}ms"}, self._steered)

    def _steered(self, answer: Answer) -> None:
        """Nothing: a refusal shows in the log of refusals, and the session works without it."""

    def _note_prepared(self, name: str, answer: Answer) -> None:
        if answer is not None:
            self._prepared.add(name)

    def _listening(self, answer: Answer) -> None:
        if answer is None and (self.link is not Link.UP or self._misplaced or self._is_last):
            return  # there is no session to go on with
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
                # An answer's reading may have swallowed a notification: look after each, the last one too (the socket does not show it any more).
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
                    failpoints.reach(f"parent:{letter.name}.before")
                if letter.prepares:
                    conn.send_prepare(letter.name.encode(), letter.text)
                elif letter.name in self._prepared:
                    conn.send_query_prepared(letter.name.encode(), letter.parameters)
                else:
                    conn.send_query_params(letter.text, letter.parameters)
                self._flushing = bool(conn.flush())
                if failpoints.armed:
                    failpoints.reach(f"parent:{letter.name}.sent")
        except Exception as problem:  # psycopg raises its OperationalError for whatever libpq reports
            self._lose(str(problem), now)
            return
        if self._sent is not None and now >= self._sent.give_up_at:
            self._lose(f"no answer to {self._sent.name} within {ANSWER_PATIENCE:.0f} s", now)

    def _finish(self, conn: PGconn, now: float) -> bool:
        """Take the answer to what was sent, as far as it is here. Return whether it is whole."""
        while not conn.is_busy():
            result = conn.get_result()
            if result is None:
                letter, self._sent = self._sent, None
                self.answered_at = now
                if letter is not None:
                    if failpoints.armed:
                        failpoints.reach(f"parent:{letter.name}.done")
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
                    tuple(_read(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)
                ]
            elif result.status != pq.ExecStatus.COMMAND_OK:
                state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
                by = (result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b"").decode(errors="replace")
                if state in _UNFOUND and not self.pooled and not any(letter.name == "steer_parent" for letter in self._queue):
                    self._steer()  # what was refused is sent again after it
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
        # What is indented are guesses at the reason; a detail or an advice says nothing alone.
        lines = [line for line in text.splitlines() if line and not line[0].isspace() and not line.startswith(("DETAIL:", "HINT:"))]
        return lines[-1] if lines else _unsaid()

    def _lose(self, why: str, now: float) -> None:
        self.trouble = why.strip().splitlines()[0] if why.strip() else "the connection was lost"
        self.barred = ""  # the next server, or this one when it is back, may take them
        if self._conn is not None:
            self._conn.finish()
        self._conn = None
        self.link = Link.AWAY
        self._flushing = False
        initial, most = self._retry
        # While the database is away the parent probes it every second at the latest: its first answer ends every back-off.
        delay = min(initial * 2 ** min(self._failures, 20), most, 1.0)
        self._failures += 1
        self._at = now + delay * random.uniform(0.8, 1.0)
        lost = [self._sent] if self._sent is not None else []
        lost.extend(self._queue)
        self._sent, self._queue = None, deque()
        for letter in lost:
            letter.answered(None)


def _unsaid() -> str:
    """Say why there is no connection where libpq does not: it was given no socket."""
    try:
        socket.socket(socket.AF_UNIX).close()
    except OSError as problem:
        return f"the connection failed: {problem.strerror}"
    return "the connection failed"


def _is_ready(fd: int, wanted: pq.PollingStatus) -> bool:
    """Whether the socket is where libpq wants it. Asked before, it takes a connection for made, and waits until it is: for a vanished host, long."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if wanted is pq.PollingStatus.WRITING else select.POLLIN)
    return bool(poll.poll(0))


def _harmless(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return [_harmless(item) for item in value] if isinstance(value, list | tuple) else value


def _read(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
