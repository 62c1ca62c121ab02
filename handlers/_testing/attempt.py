"""Runs one attempt of a handler directly, for `jobherd.testing`, without a database.

The payload is encoded to JSON and decoded. Binding, call and outcome are those of a worker.
"""

from __future__ import annotations

import asyncio
import inspect
import random as _random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobherd.handlers._define.batch import BatchSignature, endings_of
from jobherd.handlers._define.binding import WHOLE
from jobherd.handlers._run.call import call
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.job import Job
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._values.outcome import Outcome, Raised
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._define.handler import AnyHandler, Handler
    from jobherd.handlers._policy.backoff import Dice

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of one attempt in a test."""

    outcome: Outcome
    """The outcome: label, state, delay, result, error, code, traceback."""
    progress: tuple[tuple[float, str, object], ...] = ()
    """Progress that the handler reported, in order: fraction, note, data."""
    exception: BaseException | None = None
    """Exception that the handler raised, if any."""

    @property
    def result(self) -> object:
        """The result as the database would return it, or None."""
        return None if self.outcome.result is None else decode_payload(self.outcome.result)

    def raise_(self) -> None:
        """Raise the handler's exception, with its traceback, unless the job is completed.

        Raises:
            AssertionError: the job is not completed and the handler raised nothing. The message
                shows the outcome.
        """
        if self.outcome.label == "ok":
            return
        if self.exception is not None:
            raise self.exception
        message = f"the job is not completed, its outcome is {self.outcome.label!r}: {self.outcome.error or 'no error'}"
        raise AssertionError(message)

    def value(self) -> object:
        """Return the result of a completed job. Raises what `raise_` raises for any other.

        So a test fails with the handler's own traceback.
        """
        self.raise_()
        return self.result


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
        fields: further attributes of `Job`, such as `id`, `crashes` or `on_cancelled`.
    """
    if handler.policy.batch is not None:
        return _run_together(
            handler, [payload], attempt=attempt, max_attempts=max_attempts, random=random, fields=[fields]
        )[0]
    refuse_loop(handler, "run")
    attempt_ = _Attempt(
        handler,
        payload,
        attempt=attempt,
        most=max_attempts,
        random=random,
        fields={"payload_bytes": payload_bytes} | fields,
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
        fields={"payload_bytes": payload_bytes} | fields,
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


def refuse_loop(handler: AnyHandler, name: str) -> None:
    """Raise TypeError if a coroutine cannot run here because an event loop is already running."""
    # documented, and raises nothing
    if handler.signature.is_async and asyncio._get_running_loop() is not None:  # noqa: SLF001
        message = (
            f"{handler.kind!r} is asynchronous, and an event loop runs here: await a{name}(...) instead of {name}(...)"
        )
        raise TypeError(message)


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
        self._told: list[tuple[float, str, object]] = []
        limit = handler.policy.max_attempts if most is None else most
        self._judge = {"policy": handler.policy, "attempt": attempt, "max_attempts": limit, "random": random}
        text = check_payload(payload)
        try:
            decoded = decode_payload(text)
            self.arguments = handler.binding.bind(decoded)
            handler.signature.take_bytes(self.arguments, fields["payload_bytes"])
        except PayloadError as problem:
            self.refused = Ran(unreadable(problem), exception=problem)
            return
        self.job = _job(handler, self._told, {"attempt": attempt, "max_attempts": limit, "payload": decoded} | fields)

    def ran(self, ending: object) -> Ran:
        """Return the result of the attempt whose handler ended with `ending`."""
        outcome = outcome_of(ending, **self._judge)  # type: ignore[arg-type]  # a dict of several types
        return Ran(outcome, tuple(self._told), ending.exception if isinstance(ending, Raised) else None)


def run_batch(handler: AnyHandler, payloads: Iterable[object], *, random: Dice = _random) -> list[Ran]:
    """Call a batch handler once with all payloads and return each job's result, in order.

    The ids are 1, 2, 3, ... As in a worker, a payload that does not fit fails its job permanently,
    and the handler is called with the others.

    Args:
        handler: the batch handler.
        payloads: one JSON value per job.
        random: source of the backoff's jitter. Default: the module `random`.

    Raises:
        TypeError: the handler takes single jobs.

    Example:
        >>> from jobherd import handler
        >>> @handler("demo:double", batch=10)
        ... def double(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> [ran.result for ran in run_batch(double, [1, 21])]
        [2, 42]
    """
    if handler.policy.batch is None:
        message = f"{handler.kind!r} takes one job a call: use run(), or declare it with batch=N"
        raise TypeError(message)
    taken = list(payloads)
    return _run_together(
        handler, taken, attempt=1, max_attempts=None, random=random, fields=[{"id": n + 1} for n in range(len(taken))]
    )


def _run_together(
    handler: AnyHandler,
    payloads: list[object],
    *,
    attempt: int,
    max_attempts: int | None,
    random: Dice,
    fields: list[dict[str, Any]],
) -> list[Ran]:
    signature = handler.signature
    assert isinstance(signature, BatchSignature)
    limit = handler.policy.max_attempts if max_attempts is None else max_attempts
    told: list[list[tuple[float, str, object]]] = [[] for _ in payloads]
    ran: list[Ran | None] = [None] * len(payloads)
    jobs, arguments, places = [], [], []
    for place, payload in enumerate(payloads):
        text = check_payload(payload)
        try:
            decoded = decode_payload(text)
            arguments.append(handler.binding.bind(decoded)[WHOLE])
        except PayloadError as problem:
            ran[place] = Ran(unreadable(problem), exception=problem)
            continue
        jobs.append(
            _job(handler, told[place], {"attempt": attempt, "max_attempts": limit, "payload": decoded} | fields[place])
        )
        places.append(place)
    refuse_loop(handler, "run_batch")
    ending: object = None
    try:
        if jobs:
            ending = call(handler, jobs, signature.arguments(arguments))
    except BaseException as problem:
        ending = Raised(problem)
    for place, one in zip(places, endings_of(ending, [job.id for job in jobs]), strict=True):
        outcome = outcome_of(one, policy=handler.policy, attempt=attempt, max_attempts=limit, random=random)
        ran[place] = Ran(outcome, tuple(told[place]), one.exception if isinstance(one, Raised) else None)
    return [one for one in ran if one is not None]


def _job(handler: AnyHandler, told: list[tuple[float, str, object]], fields: dict[str, Any]) -> Job:
    given: dict[str, Any] = {
        "id": 1,
        "kind": handler.kind,
        "queue": handler.policy.queue,
        "priority": handler.policy.priority,
        "created": time.time(),
        "run": time.time(),
        "deadline": time.monotonic() + handler.policy.timeout,
        "on_progress": lambda fraction, note, data: told.append((fraction, note, data)),
    }
    return Job(**given | fields)
