"""Durable steps of a job as its handler sees them: what is done once, and returned by later attempts.

The code that runs the handler provides a `StepHost`, which keeps the records: a worker in the
database, a test in a dict. This module contains no SQL statement, and does not decide whether a
record may be written.
"""

from __future__ import annotations

import hashlib
import inspect
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from jobherd.handlers._enqueue import default
from jobherd.handlers._run.dispositions import Poison
from jobherd.handlers._values.converters import converter_for, describe_type
from jobherd.handlers._values.misfit import Misfit
from jobherd.handlers._values.outcome import WORKER_SERIALIZATION_ERROR
from jobherd.handlers._values.payload import ResultError, decode_payload, encode_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Token
    from types import TracebackType

    import psycopg

    from jobherd.handlers._enqueue.send import Own
    from jobherd.handlers._run.child_job_methods import Parent
    from jobherd.handlers._run.child_jobs import ChildCall, Spawned
    from jobherd.handlers._run.durable import Durable

LONGEST: Final = 200
"""Most characters of a step's name."""


FOREVER: Final = 10 * 365 * 86400.0
"""Seconds after which a job that waits without a timeout is called again, to wait again."""


class StepError(RuntimeError):
    """Raised for a step that cannot be run: a name used twice, a record that does not fit, no database."""


class Record(NamedTuple):
    """A step that is done."""

    result: str | None
    """Its result as JSON text."""
    version: int = 1
    """The version of the handler that recorded it."""


class StepHost(Protocol):
    """Keeps the records for the code that runs the handler."""

    def enter(self, job: Durable, name: str) -> Record | None:
        """Begin a step and return its record if it is done. Raises StepError, and psycopg's errors."""

    def record(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step with its result. If this raises, it may or may not be recorded."""

    def leave(self, name: str) -> None:
        """Note that a step has failed, so that its name can be used again."""

    def begin(self, job: Durable, name: str) -> psycopg.Connection[Any]:
        """Begin the transaction of a step that is not done."""

    def abegin(self, job: Durable, name: str) -> psycopg.AsyncConnection[Any]:
        """Like `begin`, with an asynchronous connection."""

    def commit(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step in its transaction and commit. Raises if it was not committed."""

    def undo(self, name: str) -> None:
        """Roll the transaction of a step back."""

    def sleep(self, job: Durable, name: str | None, seconds: float) -> None:
        """Suspend the job, unless it has slept. Raises JobSuspended. name: None: by its number in the attempt."""

    def wait(self, job: Durable, name: str, topic: str, seconds: float | None) -> Record:
        """Return the record of the signal that the job takes, `{"payload": ...}`, or of the timeout, `{}`.

        Raises JobSuspended if there is none yet. seconds: None: without a timeout.
        """

    def spawn(self, job: Parent, name: str | None, calls: Sequence[ChildCall[Any]], *, leaves: bool) -> Spawned:
        """Enqueue child jobs and record the step, unless that is done. name: None: by its number in the attempt.

        leaves: whether they continue if the job is canceled.
        """

    def gather(self, job: Parent, spawned: Spawned, *, failures: bool) -> Record:
        """Return a list with an entry for each child: `{"result": ...}`, or `{"failed": {...}}`.

        Raises JobSuspended if they have not ended. failures: whether they are recorded.
        """

    def began_with(self, job: Durable) -> int:
        """Return the version of the first record, or the handler's own if there is none."""


class NoSteps:
    """Host of a job that cannot have steps. message: why, and what to do instead."""

    def __init__(self, message: str) -> None:
        self._message = message

    def enter(self, *_: object, **__: object) -> NoReturn:
        """Raise StepError with the message."""
        raise StepError(self._message)

    record = leave = begin = abegin = commit = undo = sleep = wait = spawn = gather = began_with = enter


class StepTransaction:
    """The result of `job.step_transaction(name)`. Enter it once with `with`, or `async with` in a coroutine.

    Attributes:
        result: the result of the step, any JSON value, default None. Set it in the block; it is
            recorded at its end. If the step is done already, it is what was recorded.
        done: whether the step is done already. Then the block gets None, not a connection.

    Example:
        >>> with (step := job.step_transaction("reserve")) as connection:  # doctest: +SKIP
        ...     if connection:
        ...         connection.execute("UPDATE stock SET free = free - 1 WHERE item = 7")
        ...         step.result = {"item": 7}
    """

    def __init__(self, job: Durable, name: str) -> None:
        self.result: Any = None
        self.done = False
        self._job = job
        self._name = check_name(name)
        self._host = job.transaction_host.steps
        self._before: Token[Own | None] | None = None

    def __enter__(self) -> psycopg.Connection[Any] | None:
        return None if self._is_done() else self._in_transaction(self._host.begin)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(problem)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any] | None:
        return None if self._is_done() else self._in_transaction(self._host.abegin)

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(problem)

    def _is_done(self) -> bool:
        record = self._host.enter(self._job, self._name)
        if record is not None:
            self.done, self.result = True, decoded(record.result)
        return self.done

    def _in_transaction(self, begin: Callable[[Durable, str], Any]) -> Any:
        try:
            connection = begin(self._job, self._name)
        except BaseException:
            self._host.leave(self._name)
            raise
        self._before = default.enter_transaction(connection)
        return connection

    def _end(self, problem: BaseException | None) -> None:
        if self._before is not None:
            default.leave_transaction(self._before)
        if self.done:
            return
        if problem is not None:
            self._host.undo(self._name)
            return
        try:
            text = encoded(self._name, self.result)
        except BaseException:
            self._host.undo(self._name)
            raise
        self._host.commit(self._job, self._name, text)


def check_name(name: object) -> str:
    """Return a step's name, or raise StepError.

    >>> check_name("charge")
    'charge'
    """
    if not isinstance(name, str) or not name or len(name) > LONGEST or not name.isprintable():
        message = f"a step's name must be 1 to {LONGEST} printable characters, not {name!r:.60}"
        raise StepError(message)
    return name


def key_of(job: Durable, name: str) -> str:
    """Return an idempotency key of a step: the same in each attempt, and another for each job and step.

    It includes when the job was enqueued, since a copy of the database may give out the same ids.
    """
    text = f"{job.id}/{job.created:.3f}/{job.kind}/{check_name(name)}"
    return f"{job.id}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def encoded(name: str, result: object) -> str | None:
    """Return the result of a step as JSON text.

    Raises Poison if it is not JSON: the step is done, and another attempt would repeat it.
    """
    try:
        return encode_result(result)
    except ResultError as problem:
        message = f"step {name!r} is done, but its result cannot be recorded: {problem}"
        raise Poison(message, WORKER_SERIALIZATION_ERROR) from problem


def decoded(text: str | None) -> Any:
    """Return the result that a record holds."""
    return None if text is None else decode_payload(text)


def converted(name: str, record: Record, wanted: Any) -> Any:
    """Return the result of a record as `wanted`, a type, or as it is if that is None. Raises StepError."""
    value = decoded(record.result)
    if wanted is None or (convert := converter_for(wanted)) is None:
        return value
    try:
        return convert(value)
    except Misfit as misfit:
        message = (
            f"what step {name!r} has recorded (with version {record.version} of the handler) is not "
            f"{describe_type(wanted)}: {misfit}. Give the step another name, such as {name + ':v2'!r}, "
            "or read both forms"
        )
        raise StepError(message) from None


def returned_by(function: object) -> Any:
    """Return the type that a function says it returns, None if it says nothing that can be read."""
    if "return" not in getattr(function, "__annotations__", {}):
        return None
    found: Any = None
    with suppress(Exception):  # a name that is only known while types are checked
        found = typing.get_type_hints(function).get("return")
    return found


def refuse_awaitable(name: str, result: object) -> None:
    """Raise TypeError if a step's function returned a coroutine."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        message = f"the function of step {name!r} is a coroutine function: use `await job.astep(...)`"
        raise TypeError(message)
