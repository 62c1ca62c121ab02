"""A child's session: it comes back by itself, for ever.

A database that is away is no error of the child's: it waits, holds what it holds, and goes on. So callers see an answer, `Left` (there
is no more use in waiting), or a defect in what they sent. Nothing here knows what the statements mean, with one exception: a claim may
have been committed by a session that broke before it could answer. After a break the old session is ended first, then what it may have
claimed is given back. The other way round it could still commit, and its jobs would wait for as long as this child lives.

Two statements that are sent together are two transactions.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._enqueue.dsn import KEPT_ALIVE, redact_dsn
from jobherd.workers.database.errors import takes_no_writes
from jobherd.workers.database.wire import Silence, Wire
from jobherd.workers.system.procfs import started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.process.wakeup import Wake

Row: TypeAlias = tuple[Any, ...]
Said: TypeAlias = "list[Row] | psycopg.Error"
Parameters: TypeAlias = "Mapping[str, object]"

_log = logging.getLogger("jobherd.connection")

_AT_ONCE: Final = frozenset({"40001", "40P01", "55P03", "57014"})
"""Serialization, deadlock, lock timeout, a cancelled statement: the session is good, asking again helps."""
_TRIES: Final = 5
UNKNOWN_FUNCTION: Final = "42883"
"""Of a condition of the application's it says that the condition is wrong, and no other session helps."""
_AWAY_CODES: Final = frozenset({"25006", "0A000", "26000", "42P05", "42P01", UNKNOWN_FUNCTION, "3D000", "3F000", "42501", "72000"})
"""A standby; a plan of before a migration; statements that a pooler has lost; a database that is just being restored or moved. Also a trigger that an
application has just made, which finds its names only in a session that knows of it: see pin_search_path.sql."""
_AWAY_CLASSES: Final = frozenset({"08", "25", "28", "53", "57", "58", "XX", "F0"})
_UNPREPARED: Final = frozenset({"26000", "42P05"})
PATIENCE: Final = 10.0
"""Seconds without a word from the server after which a session is taken for lost. Within a lease: what is in hand is settled in time."""
MOST_PATIENT: Final = 64
"""Times that, where one silence follows the other: what takes the server long, as megabytes on a slow disk do, would be begun again and again."""
CONNECT_PATIENCE: Final = 10
LEAST_PATIENCE: Final = 2
"""Seconds to connect: to all servers that the DSN names together, but to each at least so long."""
_BEFORE_HAND: Final = {**KEPT_ALIVE, "target_session_attrs": "read-write"}
"""Of several hosts the first that answers may be a standby, which takes no claim, and would be asked again and again."""
_OURS: Final = {"client_encoding": "UTF8"}
"""Whatever DSN and environment say: in another one a payload could not be read, and an outcome not be written. As the server spells it: by any
other name pgbouncer takes it for another one, and sets it anew before each transaction."""
_ENDING: Final = 2.0
"""Seconds to wait for the end of the old session, once the server has told it to end. If this role must not end it: one lease."""


class Left(Exception):  # noqa: N818 - no error: the child has been told to leave, or has lost its supervisor
    """There is no more use in waiting for the database; the message says why."""


class Session:
    """The one connection of a child.

    seat: whose it is. wake: where it waits while the database is away; a nudge or a dismissal ends the wait.
    holding: asked after a break for the tokens of the claims that the child knows of.
    database: its name on the server, once it is connected.
    child, backend: its number in `children` and its backend's pid, once it is connected.
    pooled: a pooler stands between: it may hand each transaction to another backend, and none of them is ours.
    sessions: how many there have been. With each new one all claims are given back but those that are held.
    patience: seconds without a word from the server after which the session is taken for lost; twice as many after each time that it was, until
        something is answered.
    pinned: functions are found in pg_catalog only; not with conditions of the application's, whose names may be in its search path.
    """

    def __init__(
        self, spec: ChildSpec, wake: Wake, holding: Callable[[], Sequence[int]] = tuple, *, patience: float = PATIENCE, pinned: bool = True
    ) -> None:
        self.child = 0
        self.backend = 0
        self.database = b""
        self.sessions = 0
        self.pooled = False
        self._spec = spec
        self._wake = wake
        self._holding = holding
        self._patience = patience
        self._pinned = pinned
        self._silences = 1
        """How many times that the next session waits, for the last ones were taken for lost in silence."""
        self._connection: psycopg.Connection[Row] | None = None
        self._prepare = True
        self._lost_at: float | None = None
        self._pause = 0.0
        self._wire: Wire
        self._file: tuple[int, int] | None = None
        self._behind = False
        """An answer is still on the line."""
        self._heard: list[Row] | Exception = []
        """What it was."""
        self._abandoned: list[psycopg.Connection[Row]] = []

    def connect(self) -> None:
        """Return once there is a session. Raises Left if the child is to leave or its supervisor was reclaimed."""
        self._keep_trying(lambda: None, patient=False)

    def run(self, statement: str, parameters: Parameters | None = None, *, patient: bool = False, stubborn: bool = True) -> list[Row]:
        """Send a statement, in a transaction of its own, and return its rows, however long the database is away.

        statement: its name in sql/queries. It may be sent twice: a break hides whether it was committed.
        patient: also wait when the child has been dismissed; for outcomes, which must not be lost.
        stubborn: ask again after a deadlock or a lock that was not to be had; without it that is raised.
        Raises Left, or psycopg.Error if the statement itself is refused.
        """
        return self._keep_trying(lambda: self._send(statement, parameters), patient=patient, stubborn=stubborn)

    def hurry(self, statement: str, parameters: Parameters) -> list[Row]:
        """Send a statement for which somebody waits. As `run`, with nothing before it that could be left out."""
        first: list[psycopg.Error] = []
        self._hear()
        if self._connection is not None:
            try:
                return self._wire.hurry(statement, parameters)
            except psycopg.Error as problem:
                if self._broken():
                    self._note_lost(problem)  # a new session, which comes first now, would be given up for what this one had
                else:
                    first.append(problem)

        def again() -> list[Row]:
            if first:
                raise first.pop()
            return self._send(statement, parameters)

        return self._keep_trying(again, patient=False)

    def run_in_one(self, *letters: tuple[str, Parameters], eager: bool = False) -> list[Row]:
        """Send statements in one round trip and one transaction, however long the database is away; return the rows of the last.

        Each sees what was committed when it began. The rest is as in `run`.
        """
        return self._keep_trying(lambda: self._ready().exchange(*letters, eager=eager)[-1], patient=False)

    def run_alone(self, statement: str) -> bool:
        """Send a statement that may stand in no transaction with others, once, and return whether it was done: it is worth no second try.

        Behind a pooler the limits of its role hold for it. Raises nothing.
        """
        try:
            self._ready().exchange_alone(statement)
        except psycopg.Error as problem:
            if self._broken() or problem.sqlstate is None or problem.sqlstate in _UNPREPARED:
                self._note_lost(problem)
            else:
                _log.warning("the server refuses %s: %s", statement, problem, extra={"sqlstate": problem.sqlstate})
            return False
        return True

    def count(self, statement: str, parameters: Parameters) -> int:
        """Send a statement as `run` does and return how many rows it has changed."""
        self.run(statement, parameters)
        return self._wire.changed

    def run_both(self, first: str, before: Parameters, second: str, after: Parameters) -> tuple[Said, Said]:
        """Send two statements in one round trip, each a transaction of its own, once; return the rows of each or why it was refused.

        In one transaction the second would hold its locks while the first waits for its fsync.
        Raises psycopg.Error if the session is lost, and opens no other: a break hides what was executed, and see `run_ahead`.
        """
        self._hear()
        try:
            one, two = self._opened().exchange_each((first, before), (second, after))
        except psycopg.Error as problem:
            if self._broken() or (is_away(problem) and problem.sqlstate not in _AT_ONCE):
                self._note_lost(problem)
            raise
        for said in (one, two):
            if isinstance(said, psycopg.Error) and (self._broken() or (is_away(said) and said.sqlstate not in _AT_ONCE)):
                self._note_lost(said)
        return one, two

    def run_ahead(self, first: str, before: Parameters, behind: str, after: Parameters) -> Said:
        """Send two statements as `run_both` does, and return what is said to the first; `hear` returns the other.

        Whatever else is asked of this session waits for that answer first. Raises psycopg.Error if the session is lost, and opens no other: what
        was claimed in this one may have been swallowed by a crash of the server, and its number be given to the claim that is sent with its
        settlement. `hear` returns a loss then too.
        """
        self._hear()
        self._behind = True
        try:
            said = self._opened().exchange_ahead((first, before), (behind, after))
        except (psycopg.Error, ValueError, OverflowError) as problem:
            if isinstance(problem, psycopg.Error) and (
                self._broken() or self._wire.owes or (is_away(problem) and problem.sqlstate not in _AT_ONCE)
            ):
                self._note_lost(problem)
            self._give_up_behind(problem)
            raise
        if isinstance(said, psycopg.Error) and (self._broken() or (is_away(said) and said.sqlstate not in _AT_ONCE)):
            self._hear()  # the one behind it may have been executed all the same
            self._note_lost(said)
        return said

    def hear(self) -> list[Row] | Exception:
        """Wait for the answer to what `run_ahead` sent behind, and return its rows or why it was refused or is lost."""
        self._hear()
        return self._heard

    def is_whole(self) -> bool:
        """Return whether the session's file is still its own. If a job has closed it, nothing more is said there: it may be another's by now."""
        if self._connection is None or self._connection.closed:
            return True
        if _file(self._connection) == self._file:
            # Or a read of an answer that ends where the buffer does would wait for more, for ever.
            os.set_blocking(self._connection.fileno(), False)
            return True
        self._abandoned.append(self._connection)  # kept: its end would say goodbye into whatever that number is now, and close it
        self._connection = None
        self._give_up_behind(psycopg.OperationalError("a job closed the session"))
        return False

    @contextmanager
    def unhurried(self, patience: float) -> Iterator[None]:
        """Wait so long for a word from the server: for statements that take their time."""
        before = self._patience
        self._patience = self._wire.patience = patience
        try:
            yield
        finally:
            self._patience = self._wire.patience = before

    def release_unheard(self) -> bool:
        """Give back what this child has claimed and does not hold; return whether there was any. Raises as `run`."""
        return self._note_unheard(self._keep_trying(lambda: self._send("release_unheard", self._unheard()), patient=False))

    def is_registered(self) -> bool:
        """Return whether the database knows this child by the number that it claims under. Raises as `run`."""
        return bool(self.run("find_child", {"child": self.child}))

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._spec.board.set_database(connected=False)

    # -- the way back -----------------------------------------------------------------------------------------------

    def _keep_trying(self, action: Callable[[], list[Row] | None], *, patient: bool, stubborn: bool = True) -> list[Row]:
        tries = 0
        while True:
            try:
                self._ready()
                rows = action()
            except psycopg.Error as problem:
                if problem.sqlstate in _AT_ONCE and not self._broken():
                    if not stubborn:
                        raise
                    tries += 1
                    self.rest(random.uniform(0.001, 0.01) * 2 ** min(tries, 8) if tries <= _TRIES else self._backoff(), patient=patient)
                    continue
                if not is_away(problem):
                    raise
                self._note_lost(problem)
                self.rest(self._backoff(), patient=patient)
            else:
                self._pause = 0.0
                if self._silences > 1:
                    self._silences = 1
                    self._wire.patience = self._patience
                return rows or []

    def _ready(self) -> Wire:
        self._hear()
        if self._connection is None or self._connection.closed:
            self._open()
        return self._wire

    def _opened(self) -> Wire:
        if self._broken():
            message = "the session has ended"
            raise psycopg.OperationalError(message)
        return self._wire

    def _hear(self) -> None:
        if not self._behind:
            return
        try:
            self._heard = self._wire.hear()
        except psycopg.Error as problem:
            self._note_lost(problem)
        self._behind = False

    def _give_up_behind(self, problem: Exception) -> None:
        if self._behind:
            self._behind, self._heard = False, problem

    def _send(self, statement: str, parameters: Parameters | None = None) -> list[Row]:
        return self._ready().exchange((statement, parameters or {}))[0]

    def _open(self) -> None:
        spec = self._spec
        connection = open_session(spec.settings.dsn, f"jobherd:{spec.kind}:{spec.supervisor}:{spec.incarnation}")
        try:
            self._connection = connection
            self._wire = Wire(connection, spec.settings.schema, prepared=self._prepare, patience=self._patience * self._silences)
            self._file = _file(connection)
            self.database = connection.pgconn.db
            self._register()
        except BaseException as problem:
            connection.close()
            self._connection = None
            if _wants_a_file(problem):  # to read since when this process runs
                raise psycopg.OperationalError(str(problem)) from problem
            raise
        spec.board.set_database(connected=True)
        if self._lost_at is not None:
            _log.info("the database is back after %.1f s", time.monotonic() - self._lost_at, extra={"backend": self.backend})
            self._lost_at = None

    def _register(self) -> None:
        spec = self._spec
        wire = self._ready()
        self.pooled = self._connection is not None and self._send("tell_backend")[0][0] != self._connection.info.backend_pid
        names = ("forgo_limits", "steer_planner", "pin_search_path") if self._pinned else ("forgo_limits", "steer_planner")
        steering = [(name, {"local": self.pooled}) for name in names]
        if self.pooled:  # what we set for a session would stay with the backend, for whoever gets it next
            wire.share(*steering)
        else:
            wire.exchange(*steering, ("watch_client", {}))
        me = {"supervisor": spec.supervisor, "incarnation": spec.incarnation}
        if self.child:
            since = time.monotonic()
            while True:  # the old session may still commit a claim that nobody would ever hear of
                [(alive, refused)] = self._send("end_backend", me)
                if not alive or time.monotonic() - since >= (spec.settings.lease if refused else _ENDING):
                    break
                self._wake.wait(0.05)
        pid = os.getpid()
        rows = self._send("register_child", {**me, "slot": spec.slot, "kind": spec.kind, "pid": pid, "pid_started": started(pid)})
        if not rows:
            message = f"supervisor {spec.supervisor} is not registered any more: somebody has reclaimed it"
            raise Left(message)
        self.sessions += 1
        known, (self.child, self.backend) = self.child, rows[0]
        if self.pooled:
            self._send("disown_backend", {"child": self.child})
        if known:
            self._note_unheard(self._send("release_unheard", self._unheard()))

    def _unheard(self) -> Parameters:
        return {"child": self.child, "heard": list(self._holding())}

    @staticmethod
    def _note_unheard(back: list[Row]) -> bool:
        if back:
            _log.warning("gave back %d jobs of a claim whose answer was lost", len(back), extra={"jobs": _ids(back)})
        return bool(back)

    def _broken(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken

    def _note_lost(self, problem: psycopg.Error) -> None:
        if isinstance(problem, Silence):
            self._silences = min(2 * self._silences, MOST_PATIENT)
        if problem.sqlstate in _UNPREPARED:
            self._prepare = False  # a pooler between us and the server: statements are sent whole from now on
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._give_up_behind(problem)
        self._spec.board.set_database(connected=False)
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            reason = " ".join(redact_dsn(str(problem)).split())
            _log.warning("the database is away, waiting for it: %s", reason[:500], extra={"sqlstate": problem.sqlstate or ""})

    def _backoff(self) -> float:
        settings = self._spec.settings
        self._pause = min(settings.retry_max, max(settings.retry_initial, 2 * self._pause))
        if self._wake.dismissed:
            self._pause = min(self._pause, 1.0)  # no nudge can end this wait any more
        return min(settings.retry_max, self._pause * random.uniform(0.75, 1.25))

    def rest(self, seconds: float, *, patient: bool) -> None:
        """Wait for so long, or until the parent nudges: the database may be back.

        patient: also when the child has been dismissed. Raises Left as `run`.
        """
        until = time.monotonic() + seconds
        while True:
            if self._wake.orphaned:
                message = "the supervisor is dead"
                raise Left(message)
            if self._wake.dismissed and not patient:
                message = "told to leave while the database was away"
                raise Left(message)
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._wake.wait(left):
                self._pause = 0.0  # the parent says that the database is back
                return


def is_away(problem: psycopg.Error) -> bool:
    """Return whether the session or the server is the matter, and not the statement: then another try later may be answered."""
    code = problem.sqlstate or ""
    if code:
        return code in _AWAY_CODES or code in _AT_ONCE or code[:2] in _AWAY_CLASSES or takes_no_writes(problem)
    return isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError)


def open_session(dsn: str, name: str, **more: Any) -> psycopg.Connection[Row]:
    """Connect, with adapters of our own unless `more` has a context.

    Raises psycopg.Error, also where the system has a file for the socket and none to wait for it with.
    """
    try:
        return psycopg.connect("", **session_parameters(dsn, name), autocommit=True, **{"context": OURS, **more})
    except OSError as problem:
        if _wants_a_file(problem):
            raise psycopg.OperationalError(str(problem)) from problem
        raise


def _wants_a_file(problem: BaseException) -> bool:
    """Return whether the system has none to give, to this process or to any: another try later may be answered."""
    return isinstance(problem, OSError) and problem.errno in {errno.EMFILE, errno.ENFILE}


def session_parameters(dsn: str, name: str) -> dict[str, Any]:
    """Return what to connect with: the DSN, our name for the session, and time limits where the DSN gives none."""
    given = conninfo_to_dict(dsn)
    servers = str(given.get("hostaddr") or given.get("host") or "").count(",") + 1
    return {
        "connect_timeout": str(max(CONNECT_PATIENCE // servers, LEAST_PATIENCE)),
        **_BEFORE_HAND,
        **given,
        **_OURS,
        "application_name": name,
    }


def _file(connection: psycopg.Connection[Row]) -> tuple[int, int] | None:
    """Return which file a session is, or None if that number is no file at all."""
    try:
        found = os.fstat(connection.fileno())
    except (OSError, psycopg.Error):
        return None
    return found.st_dev, found.st_ino


def _ids(rows: Sequence[Row]) -> str:
    return ",".join(str(row[0]) for row in rows[:20])
