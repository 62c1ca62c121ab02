"""What a handler sees of its job.

A plain record with a few doors that whoever runs the handler fills in: progress is a store into shared memory in a worker and a list
in a test. It must not speak to the database: a handler that looks at its job costs nothing. Who wants a transaction goes through a door.
"""

from __future__ import annotations

import logging
import shlex
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.handlers._run.transaction import NOWHERE, Transaction, TransactionHost
from jobherd.handlers._values.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

    Adapter: TypeAlias = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter  # which is no generic class in Python 3.11 when it runs

LOGGER: Final = logging.getLogger("jobherd.job")

FOR_EVER: Final = float("inf")
OUT: Final = 16384
"""Characters that are kept of what a step printed."""


def _tell_nobody(fraction: float, note: str, data: object) -> None:
    """Progress of a job that nobody watches."""


def tell_nobody(entry: Mapping[str, object]) -> None:
    """Log entries of a job whose log nobody keeps."""


def _never() -> bool:
    return False


class JobLog(Adapter):
    """The log of one attempt: a logger for lines, and by calling it a place for entries that programs can read."""

    on_entry: Callable[[Mapping[str, object]], None] = staticmethod(tell_nobody)

    def __call__(
        self,
        key: str,
        command: str | Sequence[str] = "",
        exit_code: int | None = None,
        duration: float | None = None,
        out: str | bytes = "",
    ) -> None:
        """Put down one step of the attempt; what is not given is left out.

        key: what step it was, like "clone". command: what was run, as text or as a list of words.
        exit_code: how it ended. duration: seconds it took. out: what it printed, of which the last 16,384 characters are kept.

        >>> Job(id=1, kind="demo").log("build", ["make", "-j2"], exit_code=2, out="no rule to make target")
        """
        entry: dict[str, object] = {"key": sanitize(key, 200), "at": time.time()}
        if command:
            entry["command"] = sanitize(command if isinstance(command, str) else shlex.join(map(str, command)), 4000)
        if exit_code is not None:
            entry["exit_code"] = int(exit_code)
        if duration is not None:
            entry["duration"] = round(float(duration), 6)
        if out:
            text = out[-OUT:].decode(errors="replace") if isinstance(out, bytes) else out[-OUT:]
            entry["out"] = sanitize(text, 4 * OUT)
        self.on_entry(entry)


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Job:
    """One attempt at one job, handed to a handler whose first parameter is a `Job`.

    >>> job = Job(id=7, kind="mail:receipt")
    >>> job.progress(0.5, "half of it")
    """

    id: int
    """The job's number in the database."""
    kind: str
    """The handler's name, like "mail:receipt"."""
    queue: str = "default"
    """The queue it was claimed from."""
    priority: int = 0
    """Lower numbers are claimed first."""
    attempt: int = 1
    """The number of this attempt, the first is 1."""
    max_attempts: int = 5
    """After this many attempts the job fails for good."""
    crashes: int = 0
    """How many processes have died with this job so far."""
    payload: object = None
    """The whole payload, as it was read: before it was taken apart into arguments."""
    payload_bytes: bytes | None = None
    """What was enqueued beside it as bytes, untouched, or None."""
    tenant: str | None = None
    """Whose job it is, or None."""
    webhook: str | None = None
    """The URL that is told of the job's end, or None."""
    set_off_by: int | None = None
    """The id of the job whose handler enqueued this one, or None."""
    traceparent: str | None = None
    """The trace it belongs to, as W3C Trace Context writes it, or None."""
    token: int = 0
    """The number of the claim: it grows each time the job is claimed, so an outside system can tell a late run from a new one."""
    created: float = 0.0
    """When the job was enqueued, in seconds since 1970 by the database's clock."""
    run: float = 0.0
    """When the job was due, in seconds since 1970 by the database's clock."""
    deadline: float = FOR_EVER
    """When the attempt times out, on `time.monotonic()`."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What `on_child_start` has given to this child: a loaded model, a client."""
    on_progress: Callable[[float, str, object], None] = field(default=_tell_nobody)
    """Where progress goes. Filled in by whoever runs the handler."""
    on_entry: Callable[[Mapping[str, object]], None] = field(default=tell_nobody)
    """Where log entries go. Filled in by whoever runs the handler."""
    on_cancelled: Callable[[], bool] = field(default=_never)
    """Asked by `cancelled`. Filled in by whoever runs the handler."""
    doors: TransactionHost = field(default=NOWHERE)
    """Where transactions come from. Filled in by whoever runs the handler."""
    _log: JobLog | None = field(default=None, init=False)

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued, in UTC."""
        return datetime.fromtimestamp(self.created, UTC)

    @property
    def run_at(self) -> datetime:
        """When the job was due, in UTC."""
        return datetime.fromtimestamp(self.run, UTC)

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure of this attempt is the job's failure."""
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """True once somebody asked to cancel the job: for loops that want to end by themselves before they are interrupted."""
        return self.on_cancelled()

    @property
    def log(self) -> JobLog:
        """A logger whose lines carry the job's id, kind and attempt; called, it puts an entry into the log of the attempt.

        >>> Job(id=1, kind="demo").log("clone", "git clone ...", exit_code=0, duration=1.5)
        """
        if self._log is None:
            self._log = JobLog(LOGGER, {"job": self.id, "kind": self.kind, "attempt": self.attempt})
            self._log.on_entry = self.on_entry
        return self._log

    def transaction(self) -> Transaction:
        """Return a transaction that completes the job: what is written in it, the jobs enqueued in it and the completion are one.

        To be entered with `with`, or with `async with` in a coroutine; that gives a psycopg connection. At the end of the block the job
        is completed and all of it committed, once and together; what follows the block is no part of the job any more, and a value that the
        handler returns is not kept: set `result` of the transaction. If the block raises, nothing of it has happened, and the job goes the
        way it would have gone.
        `Handler.enqueue` without client or connection enqueues into the transaction. Do not commit or roll back on the connection.

        Raises RuntimeError inside another transaction of the job, or after one that has completed it. If the claim was lost, the handler
        is ended.

        >>> with job.transaction() as connection:  # doctest: +SKIP
        ...     connection.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 7")
        ...     receipt.enqueue(order_id=7)
        """
        return Transaction(self.doors)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection of the job's transaction, in a handler declared `transactional=True`; in a coroutine it is an AsyncConnection.

        Raises RuntimeError outside of a transaction.
        """
        return self.doors.connection()  # type: ignore[return-value]  # a coroutine knows that its own is to be awaited

    def remaining(self) -> float:
        """Return the seconds until the attempt times out, 0.0 if that is past, infinity if it never does."""
        return max(0.0, self.deadline - time.monotonic())

    def progress(self, fraction: float, note: str = "", data: object = None) -> None:
        """Say how far the job is. A store into memory: free in a tight loop.

        fraction: the share that is done; what is outside 0 to 1 counts as the nearer end, NaN as 0.
        note: what it is at, for people; default "".
        data: any JSON value; default None.

        >>> Job(id=1, kind="demo").progress(3 / 24, "frame 3")
        """
        self.on_progress(1.0 if fraction > 1 else fraction if fraction >= 0 else 0.0, note, data)

    def __repr__(self) -> str:
        # Without the payload: a repr ends in logs and tracebacks.
        return f"<Job {self.id} {self.kind} attempt {self.attempt} of {self.max_attempts}>"

    def __reduce__(self) -> Any:  # the signature of object
        message = "a Job belongs to the process that runs it: hand over job.id and what you need of it"
        raise TypeError(message)
