"""The methods of a job that outlast an attempt: durable steps, sleeps and signals.

They are apart from `job.py` because each of them asks the host of the job's steps, which uses the
database. A job that calls none of them has no host of its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from jobherd.handlers._policy.durations import Duration, positive
from jobherd.handlers._run.child_job_methods import Parent
from jobherd.handlers._run.steps import (
    Record,
    StepTransaction,
    check_name,
    converted,
    decoded,
    encoded,
    key_of,
    refuse_awaitable,
    returned_by,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Durable(Parent):
    """Base of `Job`, with the attributes of a job that steps read."""

    __slots__ = ()
    id: int
    kind: str
    attempt: int
    token: int
    created: float

    @overload
    def step(self, name: str, function: Callable[..., object], /, *args: Any, returns: type[T], **kwargs: Any) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, returns: Any = None, **kwargs: Any) -> Any:
        """Call a function once and record its result; a later attempt returns what is recorded.

        The function runs at least once: the worker may die after its effect and before the record.
        Give an effect outside the database an idempotency key, see `step_key`. For an effect in the
        database use `step_transaction`, which has it exactly once. A function that raises is not
        recorded: let the attempt fail, or call `step` again.

        Args:
            name: name of the step, unique in the job. In a loop put the item into it.
            function: what to call. Its result must be JSON as a handler's result, at most 1 MB.
            args: its arguments.
            returns: type to which the result is converted, in the first attempt as in later ones.
                Default: what the function's annotation says. Without it the result is plain JSON:
                a tuple becomes a list.
            kwargs: its arguments by name.

        Returns:
            The result.

        Raises:
            StepError: the name was used in this attempt already, the record does not fit
                `returns`, or the job cannot have steps: in a batch handler, inside
                `job.transaction()`, or without a database.

        Example:
            >>> charge = job.step("charge", charge_card, 7, key=job.step_key("charge"))  # doctest: +SKIP
        """
        host = self.transaction_host.steps
        record = host.enter(self, check_name(name))
        if record is None:
            try:
                result = function(*args, **kwargs)
                refuse_awaitable(name, result)
                record = Record(encoded(name, result))
                host.record(self, name, record.result)
            except BaseException:
                host.leave(name)
                raise
        return converted(name, record, returned_by(function) if returns is None else returns)

    @overload
    async def astep(
        self, name: str, function: Callable[..., Awaitable[object]], /, *args: Any, returns: type[T], **kwargs: Any
    ) -> T: ...
    @overload
    async def astep(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    async def astep(
        self, name: str, function: Callable[..., Awaitable[Any]], /, *args: Any, returns: Any = None, **kwargs: Any
    ) -> Any:
        """`step` for a coroutine function.

        Reading and writing the records blocks the event loop for a round trip, but no other job
        waits for it.
        """
        host = self.transaction_host.steps
        record = host.enter(self, check_name(name))
        if record is None:
            try:
                record = Record(encoded(name, await function(*args, **kwargs)))
                host.record(self, name, record.result)
            except BaseException:
                host.leave(name)
                raise
        return converted(name, record, returned_by(function) if returns is None else returns)

    def step_key(self, name: str) -> str:
        """Return an idempotency key for a step: the same in each attempt of this job, and no other job has it.

        Args:
            name: name of the step.

        Example:
            >>> from jobherd import Job
            >>> job = Job(id=7, kind="order:fulfil")
            >>> job.step_key("charge") == job.step_key("charge") != job.step_key("refund")
            True
        """
        return key_of(self, name)

    def step_transaction(self, name: str) -> StepTransaction:
        """Return a transaction that is a step: its effect and its record commit together, exactly once.

        Enter it with `with`, or with `async with` in a coroutine. That gives a psycopg connection,
        or None if an earlier attempt has done the step: put the block behind `if connection:`. The
        job continues after the block. Set `result` of the transaction to record one.
        `Handler.enqueue` without client or connection enqueues into the transaction. Do not commit
        or roll back on the connection.

        Args:
            name: name of the step, as for `step`.

        Raises:
            StepError: as `step`.

        Example:
            >>> with job.step_transaction("reserve") as connection:  # doctest: +SKIP
            ...     if connection:
            ...         connection.execute("UPDATE stock SET free = free - 1 WHERE item = 7")
        """
        return StepTransaction(self, name)

    def sleep(self, span: Duration, name: str | None = None) -> None:
        """Suspend the job for a time in which it holds no worker; it continues after a deploy too.

        The handler ends here by JobSuspended and is called again when the time has passed. Then this
        returns at once. The attempt is not counted. The time begins when the attempt has ended. A
        job that is run earlier, by hand, suspends again for the rest.

        Args:
            span: duration such as "3d", more than 0.
            name: name of the sleep, a step. Default: its number in the attempt, `sleep:1`. Give one
                if the order of sleeps can change between attempts.

        Raises:
            JobSuspended: let it pass. A handler that swallows it fails permanently.
            StepError: as `step`.

        Example:
            >>> job.sleep("3d")  # doctest: +SKIP
        """
        seconds = positive(span, field="sleep")
        self.transaction_host.steps.sleep(self, None if name is None else check_name(name), seconds)

    async def asleep(self, span: Duration, name: str | None = None) -> None:
        """`sleep` for coroutines."""
        self.sleep(span, name)

    def wait_for(
        self, name: str, timeout: Duration | None = None, *, topic: str | None = None, returns: Any = None
    ) -> Any:
        """Suspend the job until a signal arrives, and return the signal's payload.

        The handler ends here by JobSuspended and is called again when there is a signal. Then this
        returns its payload, in later attempts too. A signal that was sent before counts: each job
        gets every signal of the last 30 days once, the oldest first.

        Args:
            name: name of the signal, which `Client.signal_job` sends to this job. Also the name of a
                step: wait twice for a topic by two names.
            timeout: how long to wait, as a duration. Default: without an end.
            topic: wait for the signals that `Client.signal` sends to this topic instead.
            returns: type to which the payload is converted. Default: plain JSON.

        Returns:
            The payload, or None if the timeout has passed.

        Raises:
            JobSuspended: let it pass. A handler that swallows it fails permanently.
            StepError: as `step`.

        Example:
            >>> approved = job.wait_for("approved", timeout="7d")  # doctest: +SKIP
        """
        seconds = None if timeout is None else positive(timeout, field="timeout")
        topic = f"job/{self.id}/{check_name(name)}" if topic is None else topic
        record = self.transaction_host.steps.wait(self, name, topic, seconds)
        found = decoded(record.result)
        if "payload" not in found:
            return None
        return converted(name, Record(json.dumps(found["payload"]), record.version), returns)

    async def await_for(
        self,
        name: str,
        timeout: Duration | None = None,  # noqa: ASYNC109  # of the job, which outlasts the coroutine
        *,
        topic: str | None = None,
        returns: Any = None,
    ) -> Any:
        """`wait_for` for coroutines."""
        return self.wait_for(name, timeout, topic=topic, returns=returns)

    @property
    def began_with(self) -> int:
        """The `version` of the handler with which the job recorded its first step.

        The handler's own if it has recorded none. Branch on it where steps were added, removed or
        changed, so that jobs that began before continue unchanged.
        """
        return self.transaction_host.steps.began_with(self)
