"""Decides the outcome of an attempt from what the handler returned or raised.

Workers and the inline runner of tests call the same function, so a test sees what production does.
This module writes nothing and never raises: the attempt has ended, and an exception here would
leave its outcome unrecorded. The table it implements:

    the handler                                           state                    counted  label
    returns a value, Completed                            completed                yes      ok
    returns a value that is not valid JSON                failed                   yes      failed
    raises any exception, Failed; exceeds its timeout     scheduled or failed      yes      retry / failed
    raises Poison, or fails with an error in poison_on    failed                   yes      poison
    fails with an error missing from the retry_on given   failed                   yes      failed
    Nack, Retry                                           scheduled or failed      yes      retry / failed
    Snooze                                                scheduled                no       snoozed
    is suspended by `job.sleep`                           scheduled                no       suspended
    Abandon; is interrupted by a drain                    ready                    no       abandoned
    is canceled                                           cancelled                yes      cancelled
    its expires_at has passed                             expired                  no       expired
    has a kind without a loaded handler                   scheduled, then failed   no       snoozed / failed

A return value that is not valid JSON fails the job at once, without a retry. The work is done:
running it again would repeat its effects and return the same. Fix the handler, then use `jobherd
retry`.
"""

from __future__ import annotations

import random as _random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jobherd.handlers._policy.backoff import DEFAULT, Dice, wait
from jobherd.handlers._policy.durations import at_least_zero
from jobherd.handlers._policy.policy import Policy
from jobherd.handlers._run.dispositions import (
    Abandon,
    Completed,
    Failed,
    JobCancelled,
    JobDrained,
    JobInterrupted,
    JobSuspended,
    JobTimeout,
    Nack,
    Poison,
    SignalledOutcome,
    Snooze,
)
from jobherd.handlers._values.payload import ResultError, encode_result
from jobherd.handlers._values.sanitize import class_path, describe_exception, sanitize

if TYPE_CHECKING:
    from jobherd.handlers._policy.option_checks import Errors

from jobherd.handlers._values.outcome import (
    JOB_CANCELLED,
    JOB_TIMEOUT,
    NACK,
    OK,
    POISON,
    UNHANDLED_ERROR,
    WORKER_SERIALIZATION_ERROR,
    Outcome,
    Raised,
)

CANCELLED: Final = "cancelled while it ran"


_CODE_BYTES = 100


def outcome_of(  # each is a different thing to know
    ending: object,
    *,
    policy: Policy | None = None,
    attempt: int = 1,
    max_attempts: int | None = None,
    interruption: JobInterrupted | None = None,
    random: Dice = _random,
) -> Outcome:
    """Return the outcome of a job whose handler ended with `ending`. Never raises.

    Args:
        ending: what the handler returned, or `Raised(exception)`.
        policy: the handler's policy. Default: that of a handler without options.
        attempt: number of the attempt that ended, starting at 1.
        max_attempts: the job's own limit. Default: the handler's.
        interruption: exception that the stop sequence raised in this handler, if any. Then any
            raised exception that is not a disposition counts as this interruption, whatever the
            handler turned it into. A handler that returned a value has finished all the same.
        random: source of the backoff's jitter.

    Example:
        >>> outcome_of({"pages": 3}).result
        '{"pages":3}'
    """
    if ending is None:
        return OK
    policy = policy or Policy()
    last = attempt >= (policy.max_attempts if max_attempts is None else max_attempts)
    try:
        return _judge(ending, policy, attempt=attempt, last=last, interruption=interruption, random=random)
    # a metaclass or a subclass of a disposition raised: the failure must still be recorded
    except BaseException as problem:
        message, _ = describe_exception(problem)
        error = sanitize(f"what the handler returned or raised could not be interpreted: {message}")
        return unjudged(ending, error, attempt=attempt, last=last, interruption=interruption)


def unjudged(ending: object, error: str, *, attempt: int, last: bool, interruption: JobInterrupted | None) -> Outcome:
    """Return the outcome of an attempt whose ending cannot be examined.

    Runs no code of the handler. Only the interruption raised by the stop sequence decides. A
    handler that raised after an interruption has ended because of it: a canceled job must not run
    again because its exception cannot be read.

    Args:
        ending: as in `outcome_of`.
        error: why the ending cannot be examined.
        attempt: as in `outcome_of`.
        last: whether there is no further attempt.
        interruption: as in `outcome_of`.

    Example:
        >>> unjudged(Raised(ValueError()), "unreadable", attempt=1, last=False, interruption=JobCancelled("no")).state
        'cancelled'
    """
    code = UNHANDLED_ERROR
    if type(ending) is Raised:  # isinstance reads the returned object's __class__, which may be what cannot be examined
        match interruption:
            case JobCancelled():
                return Outcome("cancelled", error=CANCELLED, code=JOB_CANCELLED)
            case JobDrained():
                return Outcome("abandoned")
            case JobTimeout():
                code, error = JOB_TIMEOUT, sanitize(f"JobTimeout: {interruption}; {error}")
    if last:
        return Outcome("failed", error=error, code=code)
    return Outcome("retry", delay=DEFAULT.delay(attempt), error=error, code=code)


def _judge(  # one return for each row of the table
    ending: object, policy: Policy, *, attempt: int, last: bool, interruption: JobInterrupted | None, random: Dice
) -> Outcome:
    raised = ending.exception if isinstance(ending, Raised) else None
    said = ending if raised is None else raised
    if interruption is not None and raised is not None and not isinstance(raised, SignalledOutcome):
        said = interruption
    match said:
        case Completed(result=result):
            return _completed(result)
        case Failed(error=error, code=code):
            text, name = (
                sanitize(error) or "the handler returned a failure without a reason",
                _code(code or UNHANDLED_ERROR),
            )
            return _failure(None, text, name, _trace(raised), policy, attempt=attempt, last=last, random=random)
        case Nack(delay=delay, reason=reason):
            wanted = (
                wait(policy.backoff, attempt, random) if delay is None else at_least_zero(delay, field="Nack delay")
            )
            return _again(
                last=last, delay=wanted, error=sanitize(reason) or "the handler requested another attempt", code=NACK
            )
        # checked again: a subclass may set any value, and an invalid duration could never be
        # recorded
        case Snooze(delay=delay):
            return Outcome("snoozed", delay=at_least_zero(delay, field="Snooze delay"))
        case Abandon():
            return Outcome("abandoned")
        case Poison(message=text, code=code):
            error = sanitize(text) or "the handler marked the job as poison"
            return Outcome("poison", error=error, code=_code(code), traceback=_trace(raised))
        case _ if raised is None:
            return _completed(said)
        case JobCancelled():
            return Outcome("cancelled", error=CANCELLED, code=JOB_CANCELLED, traceback=_trace(raised))
        case JobSuspended(delay=float(delay)):
            return Outcome("suspended", delay=delay)
        case JobDrained():
            return Outcome("abandoned")
        case JobTimeout():
            error = f"JobTimeout: {sanitize(said) or 'the job ran past its timeout'}"
            return _failure(said, error, JOB_TIMEOUT, _trace(raised), policy, attempt=attempt, last=last, random=random)
    message, trace = describe_exception(raised)
    outcome = _failure(raised, message, UNHANDLED_ERROR, trace, policy, attempt=attempt, last=last, random=random)
    return replace(outcome, error_class=class_path(raised))


def _failure(
    raised: BaseException | None,
    error: str,
    code: str,
    trace: str | None,
    policy: Policy,
    *,
    attempt: int,
    last: bool,
    random: Dice,
) -> Outcome:
    """Return the outcome of a failed attempt by the rules of its kind.

    raised: the exception, for rules that name classes. A failure without an exception, or a
        timeout, is matched by its code: a `retry_on` that lists only classes does not apply to it.
    """
    if _lists(policy.poison_on, raised, code):
        return Outcome("poison", error=error, code=POISON if code == UNHANDLED_ERROR else code, traceback=trace)
    exempt = raised is None or code == JOB_TIMEOUT
    if (
        (rule := policy.retry_on) is not None
        and not _lists(rule, raised, code)
        and not (exempt and not any(isinstance(one, str) for one in rule))
    ):
        return Outcome("failed", error=error, code=code, traceback=trace)
    wanted = next((special for listed, special in policy.backoff_on if _lists((listed,), raised, code)), policy.backoff)
    return _again(last=last, delay=wait(wanted, attempt, random), error=error, code=code, traceback=trace)


def _lists(errors: Errors, raised: BaseException | None, code: str) -> bool:
    return any(code == one if isinstance(one, str) else isinstance(raised, one) for one in errors)


def _completed(result: object) -> Outcome:
    try:
        return Outcome("ok", result=encode_result(result))
    except ResultError as problem:
        error = f"the handler has finished, but its result cannot be stored: {sanitize(problem)}"
        return Outcome("failed", error=error, code=WORKER_SERIALIZATION_ERROR)


def _again(*, last: bool, delay: float, error: str, code: str, traceback: str | None = None) -> Outcome:
    if last:
        return Outcome("failed", error=error, code=code, traceback=traceback)
    return Outcome("retry", delay=delay, error=error, code=code, traceback=traceback)


def _trace(raised: BaseException | None) -> str | None:
    return None if raised is None else describe_exception(raised)[1] or None


def _code(code: object) -> str:
    """Return an error code fit for metrics, lists and log lines.

    Characters that are not printable are written as their code point.
    """
    text = sanitize(code, _CODE_BYTES)
    return (
        text
        if text.isprintable()
        else sanitize("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text), _CODE_BYTES)
    )
