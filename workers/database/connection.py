"""A child process's database session, which reconnects automatically and never times out.

A database that is away is not an error of the process: it waits, keeps its claim, and continues.
Callers get rows, `Left` (waiting has no use any more), or an error in what they sent.

This module does not know what the statements mean, with one exception: a session that broke before
it could answer may have committed a claim. After a break, the old session is ended first, then the
jobs it may have claimed are released. In the other order, the old session could still commit, and
its jobs would wait for as long as this process lives.

Two statements that are sent together are two transactions.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._enqueue.dsn import KEPT_ALIVE, redact_dsn
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import is_retryable, is_transient, is_unprepared
from jobherd.workers.database.pooler import is_pooled
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

_TRIES: Final = 5
_SOON: Final = 0.002, 0.32
_SOON_SPREAD: Final = 1.0, 10.0
"""Delays in seconds before the first _TRIES retries in the same session, such as after a deadlock."""
PATIENCE: Final = 10.0
"""Seconds without data from the server after which a session counts as lost. Shorter than a lease,
so the claim is settled in time.
"""
MOST_PATIENT: Final = 64
"""Maximum factor on that limit if one silence follows another. Without the increase, work that
takes the server long, such as megabytes on a slow disk, would be restarted again and again.
"""
CONNECT_PATIENCE: Final = 10
LEAST_PATIENCE: Final = 2
"""Seconds to connect: CONNECT_PATIENCE for all servers of the DSN together, and at least
LEAST_PATIENCE for each.
"""
_BEFORE_HAND: Final = {**KEPT_ALIVE, "target_session_attrs": "read-write"}
"""With several hosts, the first that answers may be a standby. It accepts no claim, and would be
tried again and again.
"""
_OURS: Final = {"client_encoding": "UTF8"}
"""Overrides the DSN and the environment: in another encoding a payload could not be read, and an
outcome not be written. Spelled as the server spells it: pgbouncer takes any other spelling for
another encoding, and sets it before each transaction.
"""
_ENDING: Final = 2.0
"""Seconds to wait for the end of the old session after the server was asked to end it. If this role
must not end it, the wait is one lease.
"""


class Left(Exception):  # noqa: N818 - not an error: the process was asked to exit, or has lost its supervisor
    """Waiting for the database has no use any more. The message says why."""


class Session:
    """The one connection of a child process.

    spec: whose session it is. wake: where it waits while the database is away; a wake or a
    dismissal ends the wait.
    holding: called after a break, returns the tokens of the claims that the process knows of.
    database: its name on the server, once connected.
    child, backend: number in `children`, and pid of the backend, once connected.
    pooled: a pooler is in between. It may run each transaction on another backend, and none belongs
    to this process.
    sessions: how many there have been. Each new session releases all claims except those in
    `holding`.
    patience: seconds without data from the server after which the session counts as lost. Doubled
    each time that happens, until the server responds.
    pinned: functions are found in pg_catalog only. Off with conditions of the application, whose
    names may be in its search path.
    """

    def __init__(
        self,
        spec: ChildSpec,
        wake: Wake,
        holding: Callable[[], Sequence[int]] = tuple,
        *,
        patience: float = PATIENCE,
        pinned: bool = True,
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
        """Factor on the patience of the next session, because the last ones were lost in silence."""
        self._connection: psycopg.Connection[Row] | None = None
        self._prepare = True
        self._lost_at: float | None = None
        self._backoff = Backoff(spec.settings.db_retry_initial, spec.settings.db_retry_max, spread=(0.75, 1.25))
        self._wire: Wire
        self._file: tuple[int, int] | None = None
        self._behind = False
        """Whether the response to `run_ahead` is still unread."""
        self._heard: list[Row] | Exception = []
        """That response."""
        self._abandoned: list[psycopg.Connection[Row]] = []

    def connect(self) -> None:
        """Return once there is a session.

        Raises Left if the process must exit or its supervisor was reclaimed.
        """
        self._keep_trying(lambda: None, patient=False)

    def run(
        self, statement: str, parameters: Parameters | None = None, *, patient: bool = False, stubborn: bool = True
    ) -> list[Row]:
        """Send a statement in its own transaction and return its rows, however long the database is away.

        statement: its name in sql/queries. It may be sent twice: a break hides whether it was
        committed.
        patient: also wait after a dismissal. For outcomes, which must not be lost.
        stubborn: retry after a deadlock or a lock timeout. Without it, the error is raised.
        Raises Left, or psycopg.Error if the statement itself is rejected.
        """
        return self._keep_trying(lambda: self._send(statement, parameters), patient=patient, stubborn=stubborn)

    def hurry(self, statement: str, parameters: Parameters) -> list[Row]:
        """Send a statement for which a producer waits.

        As `run`, without any avoidable step before it.
        """
        first: list[psycopg.Error] = []
        self._hear()
        if self._connection is not None:
            try:
                return self._wire.hurry(statement, parameters)
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

    def run_in_one(self, *letters: tuple[str, Parameters], eager: bool = False) -> list[Row]:
        """Send statements in one round trip and one transaction, and return the rows of the last.

        Each statement sees what was committed when it began. Otherwise as `run`.
        """
        return self._keep_trying(lambda: self._ready().exchange(*letters, eager=eager)[-1], patient=False)

    def run_alone(self, statement: str) -> bool:
        """Send a statement once that cannot share a transaction, and return whether it succeeded.

        It is not worth a retry. Behind a pooler, the time limits of its role apply. Raises nothing.
        """
        try:
            self._ready().exchange_alone(statement)
        except psycopg.Error as problem:
            if self._broken() or problem.sqlstate is None or is_unprepared(problem):
                self._note_lost(problem)
            else:
                _log.warning("the server rejects %s: %s", statement, problem, extra={"sqlstate": problem.sqlstate})
            return False
        return True

    def count(self, statement: str, parameters: Parameters) -> int:
        """Send a statement as `run` does, and return how many rows it changed."""
        self.run(statement, parameters)
        return self._wire.changed

    def run_both(self, first: str, before: Parameters, second: str, after: Parameters) -> tuple[Said, Said]:
        """Send two statements once, in one round trip, and return the rows or the error of each.

        Each is its own transaction: in one transaction, the second would hold its locks while the
        first waits for its fsync. Raises psycopg.Error if the session is lost, and opens no other,
        because a break hides what was executed, and for the reason given in `run_ahead`.
        """
        self._hear()
        try:
            one, two = self._opened().exchange_each((first, before), (second, after))
        except psycopg.Error as problem:
            if self._is_lost_by(problem):
                self._note_lost(problem)
            raise
        for said in (one, two):
            if isinstance(said, psycopg.Error) and self._is_lost_by(said):
                self._note_lost(said)
        return one, two

    def run_ahead(self, first: str, before: Parameters, behind: str, after: Parameters) -> Said:
        """Send two statements as `run_both` does, and return the response to the first.

        `hear` returns the other response, and every other use of this session waits for it first.
        Raises psycopg.Error if the session is lost, and opens no other. A crash of the server may
        have lost a claim of this session, and its token may be given to the claim that is sent
        together with its settlement. In that case `hear` returns the error too.
        """
        self._hear()
        self._behind = True
        try:
            said = self._opened().exchange_ahead((first, before), (behind, after))
        except (psycopg.Error, ValueError, OverflowError) as problem:
            if isinstance(problem, psycopg.Error) and (self._wire.owes or self._is_lost_by(problem)):
                self._note_lost(problem)
            self._give_up_behind(problem)
            raise
        if isinstance(said, psycopg.Error) and self._is_lost_by(said):
            self._hear()  # The second statement may have been executed all the same.
            self._note_lost(said)
        return said

    def hear(self) -> list[Row] | Exception:
        """Wait for the second response to `run_ahead`, and return its rows or its error.

        The loss of the session counts as such an error.
        """
        self._hear()
        return self._heard

    def is_whole(self) -> bool:
        """Return whether the session's socket is still its own.

        If a job has closed it, the session is abandoned: the number may belong to another file by
        now.
        """
        if self._connection is None or self._connection.closed:
            return True
        if _file(self._connection) == self._file:
            # Otherwise the read of a response that ends exactly with the buffer would block
            # indefinitely.
            os.set_blocking(self._connection.fileno(), False)
            return True
        # Kept: closing it would write to, and close, whatever file that number is now.
        self._abandoned.append(self._connection)
        self._connection = None
        self._give_up_behind(psycopg.OperationalError("a job closed the session"))
        return False

    @contextmanager
    def unhurried(self, patience: float) -> Iterator[None]:
        """Wait up to `patience` seconds for data from the server, for slow statements."""
        before = self._patience
        self._patience = self._wire.patience = patience
        try:
            yield
        finally:
            self._patience = self._wire.patience = before

    def requeue_unacknowledged(self) -> bool:
        """Release jobs that were claimed for this process and that it does not hold.

        Return whether there were any. Raises as `run`.
        """
        return self._note_unheard(
            self._keep_trying(lambda: self._send("recover/requeue_unacknowledged", self._unheard()), patient=False)
        )

    def is_registered(self) -> bool:
        """Return whether the database has this process under its number. Raises as `run`."""
        return bool(self.run("recover/find_child", {"child": self.child}))

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._spec.board.set_database(connected=False)

    # -- reconnecting

    def _keep_trying(
        self, action: Callable[[], list[Row] | None], *, patient: bool, stubborn: bool = True
    ) -> list[Row]:
        tries, soon = 0, None
        while True:
            try:
                self._ready()
                rows = action()
            except psycopg.Error as problem:
                if is_transient(problem) and not self._broken():
                    if not stubborn:
                        raise
                    tries += 1
                    soon = soon or Backoff(*_SOON, spread=_SOON_SPREAD)
                    self.rest(soon.next() if tries <= _TRIES else self._next_delay(), patient=patient)
                    continue
                if not is_retryable(problem):
                    raise
                self._note_lost(problem)
                self.rest(self._next_delay(), patient=patient)
            else:
                self._backoff.reset()
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
            self._wire = Wire(
                connection, spec.settings.schema, prepared=self._prepare, patience=self._patience * self._silences
            )
            self._file = _file(connection)
            self.database = connection.pgconn.db
            self._register()
        except BaseException as problem:
            connection.close()
            self._connection = None
            if _wants_a_file(problem):  # to read when this process started
                raise psycopg.OperationalError(str(problem)) from problem
            raise
        spec.board.set_database(connected=True)
        if self._lost_at is not None:
            _log.info(
                "the database is back after %.1f s", time.monotonic() - self._lost_at, extra={"backend": self.backend}
            )
            self._lost_at = None

    def _register(self) -> None:
        spec = self._spec
        wire = self._ready()
        [(backend,)] = self._send("session/show_backend")
        self.pooled = self._connection is not None and is_pooled(self._connection.pgconn, backend)
        names = (
            ("session/disable_timeouts", "session/force_index_plans", "session/pin_search_path")
            if self._pinned
            else ("session/disable_timeouts", "session/force_index_plans")
        )
        steering = [(name, {"local": self.pooled}) for name in names]
        if self.pooled:  # Session settings would stay with the backend, for the next client that gets it.
            wire.share(*steering)
        else:
            wire.exchange(*steering, ("session/enable_keepalives", {}))
        me = {"supervisor": spec.supervisor, "incarnation": spec.incarnation}
        if self.child:
            since = time.monotonic()
            while True:  # The old session may still commit a claim whose response would never arrive.
                [(alive, refused)] = self._send("recover/terminate_child_sessions", me)
                if not alive or time.monotonic() - since >= (spec.settings.lease if refused else _ENDING):
                    break
                self._wake.wait(0.05)
        pid = os.getpid()
        rows = self._send(
            "lease/register_child",
            {**me, "slot": spec.slot, "kind": spec.kind, "pid": pid, "pid_started": started(pid)},
        )
        if not rows:
            message = (
                f"supervisor {spec.supervisor} is not registered any more: another supervisor has reclaimed its jobs"
            )
            raise Left(message)
        self.sessions += 1
        known, (self.child, self.backend) = self.child, rows[0]
        if self.pooled:
            self._send("recover/mark_shared_backend", {"child": self.child})
        if known:
            self._note_unheard(self._send("recover/requeue_unacknowledged", self._unheard()))

    def _unheard(self) -> Parameters:
        return {"child": self.child, "heard": list(self._holding())}

    @staticmethod
    def _note_unheard(back: list[Row]) -> bool:
        if back:
            _log.warning("released %d jobs of a claim whose response was lost", len(back), extra={"jobs": _ids(back)})
        return bool(back)

    def _is_lost_by(self, problem: psycopg.Error) -> bool:
        """Return whether the session cannot be used after an error."""
        return self._broken() or (is_retryable(problem) and not is_transient(problem))

    def _broken(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken

    def _note_lost(self, problem: psycopg.Error) -> None:
        if isinstance(problem, Silence):
            self._silences = min(2 * self._silences, MOST_PATIENT)
        if is_unprepared(problem):
            self._prepare = False  # A pooler is in between: send whole statements from now on.
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._give_up_behind(problem)
        self._spec.board.set_database(connected=False)
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            reason = " ".join(redact_dsn(str(problem)).split())
            _log.warning(
                "the database is away, waiting for it: %s", reason[:500], extra={"sqlstate": problem.sqlstate or ""}
            )

    def _next_delay(self) -> float:
        # After a dismissal, no wake can end this wait any more.
        return self._backoff.next(limit=1.0 if self._wake.dismissed else float("inf"))

    def rest(self, seconds: float, *, patient: bool) -> None:
        """Wait this many seconds, or until the supervisor wakes this process.

        The database may be back.

        patient: also wait after a dismissal. Raises Left as `run`.
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
                self._backoff.reset()  # The supervisor has seen that the database is back.
                return


def open_session(dsn: str, name: str, **more: Any) -> psycopg.Connection[Row]:
    """Connect, with Jobherd's adapters unless `more` has a context.

    Raises psycopg.Error, also if the system has a file for the socket but none to wait for it.
    """
    try:
        return psycopg.connect("", **session_parameters(dsn, name), autocommit=True, **{"context": OURS, **more})
    except OSError as problem:
        if _wants_a_file(problem):
            raise psycopg.OperationalError(str(problem)) from problem
        raise


def _wants_a_file(problem: BaseException) -> bool:
    """Return whether the process or the system has no free file descriptor, so that a retry may succeed."""
    return isinstance(problem, OSError) and problem.errno in {errno.EMFILE, errno.ENFILE}


def session_parameters(dsn: str, name: str) -> dict[str, Any]:
    """Return connection parameters.

    The DSN, the session's name, and time limits unless the DSN has its own.
    """
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
    """Return the file identity of a session's socket, or None if its number is not an open file."""
    try:
        found = os.fstat(connection.fileno())
    except (OSError, psycopg.Error):
        return None
    return found.st_dev, found.st_ino


def _ids(rows: Sequence[Row]) -> str:
    return ",".join(str(row[0]) for row in rows[:20])
