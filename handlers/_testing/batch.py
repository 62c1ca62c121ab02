"""Calls a batch handler directly, for `jobherd.testing`, without a database."""

from __future__ import annotations

import random as _random
from typing import TYPE_CHECKING, Any

from jobherd.handlers._define.batch import BatchSignature, endings_of
from jobherd.handlers._define.binding import WHOLE
from jobherd.handlers._run.call import call
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._testing.ran import Ran, job_of, refuse_loop
from jobherd.handlers._values.outcome import Raised
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._policy.backoff import Dice


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
    return run_together(
        handler, taken, attempt=1, max_attempts=None, random=random, fields=[{"id": n + 1} for n in range(len(taken))]
    )


def run_together(
    handler: AnyHandler,
    payloads: list[object],
    *,
    attempt: int,
    max_attempts: int | None,
    random: Dice,
    fields: list[dict[str, Any]],
) -> list[Ran]:
    """Call a batch handler once. fields: attributes of each job."""
    signature = handler.signature
    assert isinstance(signature, BatchSignature)
    limit = handler.policy.max_attempts if max_attempts is None else max_attempts
    progress: list[list[tuple[float, str, object]]] = [[] for _ in payloads]
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
            job_of(
                handler,
                progress[place],
                {"attempt": attempt, "max_attempts": limit, "payload": decoded} | fields[place],
            )
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
        ran[place] = Ran(outcome, tuple(progress[place]), one.exception if isinstance(one, Raised) else None)
    return [one for one in ran if one is not None]
