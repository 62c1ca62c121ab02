"""Decides the outcome of a job whose handler is not called: no handler, no key, an invalid payload.

It writes nothing and never raises.
"""

from __future__ import annotations

from typing import Final

from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.outcome import (
    JOB_INVALID,
    KEY_MISSING,
    PAYLOAD_INVALID,
    WEBHOOK,
    WORKER_RESOLUTION_ERROR,
    Outcome,
)
from jobherd.handlers._values.payload import PayloadError
from jobherd.handlers._values.sanitize import describe_exception, sanitize

KEYLESS: Final = 60.0
"""Seconds until a job is tried again if no supervisor here has its key."""


def unknown_kind(kind: str, *, age: float, limit: float = 86400.0, delay: float = 60.0) -> Outcome:
    """Return the outcome of a job whose kind no loaded handler has.

    The job is released, and it fails once it is older than `limit`.

    Args:
        kind: kind of the job.
        age: seconds since the job was created, by the database's clock.
        limit: age in seconds at which the job fails, default 86400 (one day): a deploy that brings
            the handler may be on its way.
        delay: seconds until the job is tried again, default 60.

    Example:
        >>> unknown_kind("no:such", age=10).state
        'scheduled'
    """
    name = sanitize(kind, 100)
    remedy = (
        "set JOBHERD_WEBHOOK_SECRET" if kind == WEBHOOK else "check --handlers and JOBHERD_HANDLERS, or `jobherd check`"
    )
    error = f"no handler of kind {name!r} is loaded: {remedy}"
    if age > limit:
        return Outcome("failed", started=False, error=error, code=WORKER_RESOLUTION_ERROR)
    return Outcome("snoozed", delay=delay, error=error, code=WORKER_RESOLUTION_ERROR)


def unstartable(problem: str, trace: str) -> Outcome:
    """Return the outcome of a job whose row a worker cannot handle.

    It fails at once, because no other worker can handle it either.

    >>> unstartable("ValueError: a number does not fit", "").code
    'JOB_INVALID'
    """
    return Outcome(
        "poison",
        started=False,
        error=f"the job could not be started: {problem}",
        code=JOB_INVALID,
        traceback=trace or None,
    )


def unreadable(problem: BaseException) -> Outcome:
    """Return the outcome of a job whose payload cannot be read or does not fit the handler.

    The job fails permanently (poison), unless only a key is missing.

    >>> unreadable(PayloadError("payload at $.order_id is missing")).label
    'poison'
    """
    if isinstance(problem, KeyMissingError):  # the payload is valid: a worker that has the key will run it
        return Outcome("snoozed", delay=KEYLESS, error=sanitize(problem), code=KEY_MISSING)
    text = sanitize(problem) if isinstance(problem, PayloadError) else describe_exception(problem)[0]
    return Outcome("poison", error=text, code=PAYLOAD_INVALID)
