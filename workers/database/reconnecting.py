"""A child process's database session that reconnects automatically and never times out.

A database that is away is not an error of the process: it waits, keeps its claim, and continues.
This module opens the session, notices its loss, and opens the next one. `connection.py` sends
statements over it.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg

from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import is_retryable, is_transient, is_unprepared
from jobherd.workers.database.opening import Row, lacks_descriptor, open_session
from jobherd.workers.database.receiver import Silence
from jobherd.workers.database.registration import register
from jobherd.workers.database.waiting import RetryWait
from jobherd.workers.database.wire import Wire
from jobherd.workers.inspect.phrases import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.process.wakeup import Wake

Parameters: TypeAlias = "Mapping[str, object]"

_log = logging.getLogger("jobherd.connection")

PATIENCE: Final = 10.0
"""Seconds without data from the server after which a session counts as lost. Shorter than a lease,
so the claim is settled in time.
"""
MOST_PATIENT: Final = 64
"""Maximum factor on that limit if one silence follows another. Without the increase, work that
takes the server long, such as megabytes on a slow disk, would be restarted again and again.
"""
_TRIES: Final = 5
_SOON: Final = 0.002, 0.32
_SOON_SPREAD: Final = 1.0, 10.0
"""Delays in seconds before the first _TRIES retries in the same session, such as after a deadlock."""


class ReconnectingSession:
    """The one connection of a child process. For the parameters see `connection.Session`.

    database: its name on the server, once connected.
    child, backend, pooled: see `registration.Registration`.
    sessions: how many there have been. Each new session releases all claims except those in
    `holding`.
    waiting: where the process waits while the database is away.
    server: what it is connected to, for people.
    """

    server = "the database"

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
        self.waiting = RetryWait(wake, spec.settings)
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
        self._wire: Wire
        self._socket: tuple[int, int] | None = None
        self._pending = False
        """Whether the second response to `run_ahead` is still unread."""
        self._second: list[Row] | Exception = []
        """That response."""
        self._abandoned: list[psycopg.Connection[Row]] = []

    def connect(self) -> None:
        """Return once there is a session.

        Raises StopWaiting if the process must exit or its supervisor was reclaimed.
        """
        self._keep_trying(lambda: None, patient=False)

    def is_whole(self) -> bool:
        """Return whether the session's socket is still its own.

        If a job has closed it, the session is abandoned: the number may belong to another file by
        now.
        """
        if self._connection is None or self._connection.closed:
            return True
        if socket_identity(self._connection) == self._socket:
            # Otherwise the read of a response that ends exactly with the buffer would block
            # indefinitely.
            os.set_blocking(self._connection.fileno(), False)
            return True
        # Kept: closing it would write to, and close, whatever file that number is now.
        self._abandoned.append(self._connection)
        self._connection = None
        self._give_up_pending(psycopg.OperationalError("a job closed the session"))
        return False

    @contextmanager
    def with_patience(self, patience: float) -> Iterator[None]:
        """Wait up to `patience` seconds for data from the server, for slow statements."""
        before = self._patience
        self._patience = self._wire.receiver.patience = patience
        try:
            yield
        finally:
            self._patience = self._wire.receiver.patience = before

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._spec.board.set_database(connected=False)

    # -- retries

    def _keep_trying(
        self, action: Callable[[], list[Row] | None], *, patient: bool, stubborn: bool = True
    ) -> list[Row]:
        """Call `action` until it succeeds, and return what it returns.

        patient: also wait after a dismissal. stubborn: also retry in the same session, such as
        after a deadlock.
        """
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
                    if tries <= _TRIES:
                        soon = soon or Backoff(*_SOON, spread=_SOON_SPREAD)
                        self.waiting.rest(soon.next(), patient=patient)
                    else:
                        self.waiting.back_off(patient=patient)
                    continue
                if not is_retryable(problem):
                    raise
                self._note_lost(problem)
                self.waiting.back_off(patient=patient)
            else:
                self.waiting.backoff.reset()
                if self._silences > 1:
                    self._silences = 1
                    self._wire.receiver.patience = self._patience
                return rows or []

    def _ready(self) -> Wire:
        """Return the wire of a session, which is opened if there is none."""
        self._read_pending()
        if self._connection is None or self._connection.closed:
            self._open()
        return self._wire

    def _open(self) -> None:
        spec = self._spec
        connection = open_session(spec.settings.dsn, f"jobherd:{spec.kind}:{spec.supervisor}:{spec.incarnation}")
        try:
            patience = self._patience * self._silences
            self._connection = connection
            self._wire = Wire(connection, spec.settings.schema, prepared=self._prepare, patience=patience)
            self._socket = socket_identity(connection)
            self.database = connection.pgconn.db
            again = bool(self.child)
            self.child, self.backend, self.pooled = register(
                connection, self._wire, spec, self._wake, pinned=self._pinned, again=again
            )
            self.sessions += 1
            if again:
                self._requeue_unacknowledged()
        except BaseException as problem:
            connection.close()
            self._connection = None
            if lacks_descriptor(problem):  # to read when this process started
                raise psycopg.OperationalError(str(problem)) from problem
            raise
        spec.board.set_database(connected=True)
        self._note_back()

    def _requeue_unacknowledged(self) -> list[Row]:
        """Release the jobs of claims of which this process does not know: their responses were lost."""
        held = {"child": self.child, "known_tokens": list(self._holding())}
        rows = self._ready().exchange(("recover/requeue_unacknowledged", held))[0]
        if rows:
            ids = ",".join(str(row[0]) for row in rows[:20])
            _log.warning("released %d jobs of a claim whose response was lost", len(rows), extra={"jobs": ids})
        return rows

    # -- the loss of a session

    def _note_back(self) -> None:
        if self._lost_at is not None:
            away = time.monotonic() - self._lost_at
            _log.info("%s is back after %s", self.server, duration(away), extra={"backend": self.backend})
            self._lost_at = None

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
        self._give_up_pending(problem)
        self._spec.board.set_database(connected=False)
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            reason = " ".join(redact_dsn(str(problem)).split())
            _log.warning(
                "%s is away, waiting for it: %s", self.server, reason[:500], extra={"sqlstate": problem.sqlstate or ""}
            )

    # -- a response that is still to be read

    def _read_pending(self) -> None:
        if not self._pending:
            return
        try:
            self._second = self._wire.receive_pending()
        except psycopg.Error as problem:
            self._note_lost(problem)
        self._pending = False

    def _give_up_pending(self, problem: Exception) -> None:
        if self._pending:
            self._pending, self._second = False, problem


def socket_identity(connection: psycopg.Connection[Row]) -> tuple[int, int] | None:
    """Return the file identity of a session's socket, or None if its number is not an open file."""
    try:
        found = os.fstat(connection.fileno())
    except (OSError, psycopg.Error):
        return None
    return found.st_dev, found.st_ino
