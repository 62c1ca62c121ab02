"""Runs one attempt of a handler directly, for `jobherd.testing`, without a database.

The payload is encoded to JSON and decoded. Binding, call and outcome are those of a worker.
"""

from __future__ import annotations

import asyncio
import inspect
import random as _random
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobherd.handlers._run.call import call
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._testing.batch import run_together
from jobherd.handlers._testing.ran import Ran, job_of, refuse_loop
from jobherd.handlers._testing.steps import InMemory
from jobherd.handlers._values.outcome import Raised
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from jobherd.handlers._define.handler import AnyHandler, Handler
    from jobherd.handlers._policy.backoff import Dice

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")


def run(handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
    """Run a handler once with these arguments and return the result of the attempt.

    Needs no database.

    Raises:
        TypeError, PayloadError: as `enqueue`. An exception of the handler is in the result instead.

    Example:
        >>> from jobherd import handler
        >>> @handler("demo:double")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> run(double, number=21).result
        42
    """
    data = handler.split_bytes(args, kwargs)[0]
    return run_payload(handler, handler.payload(*args, **kwargs), payload_bytes=data)


async def arun(handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
    """`run` for a test inside an event loop: the handler's coroutine runs in that loop.

    Example:
        >>> from jobherd import handler
        >>> @handler("demo:double")
        ... async def double(number: int) -> int:
        ...     return 2 * number
        >>> asyncio.run(arun(double, number=21)).result
        42
    """
    data = handler.split_bytes(args, kwargs)[0]
    return await arun_payload(handler, handler.payload(*args, **kwargs), payload_bytes=data)


def run_payload(
    handler: AnyHandler,
    payload: object,
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    random: Dice = _random,
    payload_bytes: bytes | None = None,
    steps: dict[str, Any] | None = None,
    inputs: dict[str, Any] | None = None,
    **fields: Any,
) -> Ran:
    """Run a handler once with any payload, including one that does not fit.

    Args:
        handler: the handler.
        payload: any JSON value.
        attempt: number of the attempt, default 1.
        max_attempts: the job's limit. Default: the handler's.
        random: source of the backoff's jitter. Default: the module `random`.
        payload_bytes: bytes that the job carries besides the payload. Default: none.
        steps: results of durable steps that are done, by name. The steps of this attempt are added,
            so that the same dict makes the next call a retry. Default: none.
        inputs: results of earlier nodes, by name, for `job.input` and `job.inputs`. Of a node with
            a job for each item: a list of results. Default: none.
        fields: further attributes of `Job`, such as `id`, `crashes` or `on_cancelled`.
    """
    if handler.policy.batch is not None:
        return run_together(
            handler, [payload], attempt=attempt, max_attempts=max_attempts, random=random, fields=[fields]
        )[0]
    refuse_loop(handler, "run")
    attempt_ = _Attempt(
        handler,
        payload,
        attempt=attempt,
        most=max_attempts,
        random=random,
        fields={
            "payload_bytes": payload_bytes,
            "transaction_host": InMemory(steps, handler.policy, inputs),
        }
        | fields,
    )
    if attempt_.refused is not None:
        return attempt_.refused
    ending: object
    try:
        ending = call(handler, attempt_.job, attempt_.arguments)
    except BaseException as problem:
        ending = Raised(problem)
    return attempt_.ran(ending)


async def arun_payload(
    handler: AnyHandler,
    payload: object,
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    random: Dice = _random,
    payload_bytes: bytes | None = None,
    steps: dict[str, Any] | None = None,
    inputs: dict[str, Any] | None = None,
    **fields: Any,
) -> Ran:
    """`run_payload` for a test inside an event loop. Raises TypeError for a batch handler."""
    if handler.policy.batch is not None:
        message = f"{handler.kind!r} takes batches: use run_batch(), outside of an event loop if it is asynchronous"
        raise TypeError(message)
    attempt_ = _Attempt(
        handler,
        payload,
        attempt=attempt,
        most=max_attempts,
        random=random,
        fields={
            "payload_bytes": payload_bytes,
            "transaction_host": InMemory(steps, handler.policy, inputs),
        }
        | fields,
    )
    if attempt_.refused is not None:
        return attempt_.refused
    ending: object
    try:
        first = (attempt_.job,) if handler.signature.takes_job else ()
        returned: Any = handler.function(*first, **attempt_.arguments)
        ending = await returned if inspect.isawaitable(returned) else returned
    except BaseException as problem:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # the test itself was canceled
        ending = Raised(problem)
    return attempt_.ran(ending)


class _Attempt:
    """One attempt that is about to run, or its result if the payload does not fit."""

    def __init__(
        self,
        handler: AnyHandler,
        payload: object,
        *,
        attempt: int,
        most: int | None,
        random: Dice,
        fields: dict[str, Any],
    ) -> None:
        self.refused: Ran | None = None
        self._progress: list[tuple[float, str, object]] = []
        limit = handler.policy.max_attempts if most is None else most
        self._judge = {"policy": handler.policy, "max_attempts": limit, "random": random}
        text = check_payload(payload)
        try:
            decoded = decode_payload(text)
            self.arguments = handler.binding.bind(decoded)
            handler.signature.take_bytes(self.arguments, fields["payload_bytes"])
        except PayloadError as problem:
            self.refused = Ran(unreadable(problem), exception=problem)
            return
        self.job = job_of(
            handler, self._progress, {"attempt": attempt, "max_attempts": limit, "payload": decoded} | fields
        )

    def ran(self, ending: object) -> Ran:
        """Return the result of the attempt whose handler ended with `ending`."""
        outcome = outcome_of(ending, attempt=self.job.attempt, **self._judge)  # type: ignore[arg-type]  # a dict of several types
        return Ran(outcome, tuple(self._progress), ending.exception if isinstance(ending, Raised) else None)
