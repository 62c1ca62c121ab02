"""The Job object that a handler gets.

It is a plain record with callbacks that the code running the handler fills in: progress is a store
into shared memory in a worker and a list in a test. A Job must not use the database: reading it
costs nothing. A transaction goes through `TransactionHost`, and so do durable steps.
"""

from __future__ import annotations

import logging
import shlex
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.handlers._policy.names import split_trace
from jobherd.handlers._run.durable import Durable
from jobherd.handlers._run.inputs import Inputs
from jobherd.handlers._run.transaction import NO_DATABASE, Transaction, TransactionHost
from jobherd.handlers._values.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

    Adapter: TypeAlias = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter  # not generic at run time in Python 3.11

LOGGER: Final = logging.getLogger("jobherd.job")

FOR_EVER: Final = float("inf")
EXTRAS: Final = {"tenant": "tenant", "webhook": "webhook", "parent_id": "parent_id", "traceparent": "trace"}
"""Attributes that a job keeps as it was enqueued, and that few jobs have, by their names in the database."""
OUT: Final = 16384
"""Most characters kept of a step's output."""


def _ignore_progress(fraction: float, note: str, data: object) -> None:
    """Ignore progress: the default if nothing collects it."""


def ignore_entry(entry: Mapping[str, object]) -> None:
    """Ignore log entries: the default if nothing collects them."""


def _never() -> bool:
    return False


class JobLog(Adapter):
    """Log of one attempt: a logger for lines; calling it adds an entry that programs can read."""

    on_entry: Callable[[Mapping[str, object]], None] = staticmethod(ignore_entry)

    def __call__(
        self,
        key: str,
        command: str | Sequence[str] = "",
        exit_code: int | None = None,
        duration: float | None = None,
        out: str | bytes = "",
    ) -> None:
        """Add an entry about one step of the attempt. Fields that are not given are left out.

        Args:
            key: name of the step, such as "clone".
            command: command that was run, as text or as a list of words. Default: none.
            exit_code: its exit code. Default: none.
            duration: its duration in seconds. Default: none.
            out: its output, of which the last 16,384 characters are kept. Default: none.

        Example:
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
class Job(Durable, Inputs):
    """One attempt of one job. A handler gets it if its first parameter is annotated `Job`.

    Example:
        >>> job = Job(id=7, kind="mail:receipt")
        >>> job.progress(0.5, "half of it")
    """

    id: int
    """Id of the job in the database."""
    kind: str
    """The kind of the job."""
    queue: str = "default"
    """Queue from which it was claimed."""
    priority: int = 0
    """Lower numbers are claimed first."""
    attempt: int = 1
    """Number of this attempt, starting at 1. With the option `attempts_per_step` it is 1 again once the
    attempt has recorded a durable step."""
    max_attempts: int = 5
    """Number of attempts after which the job fails permanently."""
    crashes: int = 0
    """How many processes have died while running this job so far."""
    payload: object = None
    """The whole payload as decoded, before it was converted to arguments."""
    payload_bytes: bytes | None = None
    """The bytes that were enqueued with the payload, unchanged, or None."""
    tenant: str | None = None
    """Tenant to which the job belongs, or None."""
    webhook: str | None = None
    """URL that gets a request when the job reaches its final state, or None."""
    parent_id: int | None = None
    """Id of the parent job, whose handler enqueued this one, or None."""
    trace: str | None = None
    """Trace of the job as it is stored, or None: `traceparent`; after a space each, `tracestate`, which may be
    empty, and `baggage`. The option `traceparent` of an enqueue takes it. `trace_headers` has its parts."""
    flow: int | None = None
    """Id of the flow of which this job is a member, or None."""
    schedule: str | None = None
    """Name of the schedule whose instant this job is, or None."""
    scheduled_for: datetime | None = None
    """That instant, in UTC, or None. `run_at` may be later, by the schedule's jitter."""
    missed: int = 0
    """How many earlier instants did not run and are represented by this job."""
    token: int = 0
    """Fencing token of the claim. It grows with each claim, so another system can tell a late
    attempt from a new one."""
    created: float = 0.0
    """When the job was enqueued, in seconds since 1970 by the database's clock."""
    run: float = 0.0
    """When the job was due, in seconds since 1970 by the database's clock."""
    deadline: float = FOR_EVER
    """When the attempt times out, on the clock of `time.monotonic()`."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What `on_child_start` returned in this worker, such as a loaded model or a client."""
    on_progress: Callable[[float, str, object], None] = field(default=_ignore_progress)
    """Receives progress. Set by the code that runs the handler."""
    on_entry: Callable[[Mapping[str, object]], None] = field(default=ignore_entry)
    """Receives log entries. Set by the code that runs the handler."""
    on_cancelled: Callable[[], bool] = field(default=_never)
    """Called by `cancelled`. Set by the code that runs the handler."""
    transaction_host: TransactionHost = field(default=NO_DATABASE)
    """Provides transactions. Set by the code that runs the handler."""
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
    def traceparent(self) -> str | None:
        """Trace of the job in W3C Trace Context format, or None."""
        return self.trace and self.trace.partition(" ")[0]

    @property
    def trace_headers(self) -> dict[str, str]:
        """Headers that continue the job's trace in a request.

        `traceparent`, and `tracestate` and `baggage` if the producer had them. Empty without a
        trace.
        """
        return split_trace(self.trace)

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt fails the job."""
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """Whether the job is being canceled.

        For loops that want to end on their own before they are interrupted.
        """
        return self.on_cancelled()

    @property
    def log(self) -> JobLog:
        """Logger whose lines carry the job's id, kind and attempt.

        Calling it adds an entry to the attempt's log.

        Example:
            >>> Job(id=1, kind="demo").log("clone", "git clone ...", exit_code=0, duration=1.5)
        """
        if self._log is None:
            self._log = JobLog(LOGGER, {"job": self.id, "kind": self.kind, "attempt": self.attempt})
            self._log.on_entry = self.on_entry
        return self._log

    def transaction(self) -> Transaction:
        """Return a transaction that completes the job.

        Writes in it, jobs enqueued in it and the job's completion commit together. Enter it with
        `with`, or with `async with` in a coroutine; that gives a psycopg connection. At the end of
        the block the job is completed and everything is committed at once. Code after the block is
        not part of the job, and the handler's return value is not kept: set `result` of the
        transaction instead. If the block raises, nothing of it is committed, and the job's outcome
        is what it would have been without it. `Handler.enqueue` without client or connection
        enqueues into the transaction. Do not commit or roll back on the connection.

        Raises:
            RuntimeError: the job is already in a transaction, or one has completed it. If the claim
                was lost, the handler is ended.

        Example:
            >>> with job.transaction() as connection:  # doctest: +SKIP
            ...     connection.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 7")
            ...     receipt.enqueue(order_id=7)
        """
        return Transaction(self.transaction_host)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """Connection of the job's transaction, in a handler declared `transactional=True`.

        In a coroutine it is an AsyncConnection.

        Raises:
            RuntimeError: there is no transaction.
        """
        return self.transaction_host.connection()  # type: ignore[return-value]  # an AsyncConnection in a coroutine

    def remaining(self) -> float:
        """Return the seconds until the attempt times out.

        0.0 if it has timed out, infinity if it never does.
        """
        return max(0.0, self.deadline - time.monotonic())

    def progress(self, fraction: float, note: str = "", data: object = None) -> None:
        """Report how far the job is. A store into memory: cheap enough for a tight loop.

        Args:
            fraction: share that is done, 0 to 1. Lower and higher values count as 0 and 1, NaN as
                0.
            note: what the job is doing, for people. Default "".
            data: any JSON value. Default None.

        Example:
            >>> Job(id=1, kind="demo").progress(3 / 24, "frame 3")
        """
        self.on_progress(1.0 if fraction > 1 else fraction if fraction >= 0 else 0.0, note, data)

    def __repr__(self) -> str:
        # Without the payload: a repr ends up in logs and tracebacks.
        return f"<Job {self.id} {self.kind} attempt {self.attempt} of {self.max_attempts}>"

    def __reduce__(self) -> Any:  # the signature of object
        message = "a Job belongs to the process that runs it: pass job.id and the data that you need"
        raise TypeError(message)
