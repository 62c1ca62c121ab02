"""Turns what a remote handler returned or raised into a Result of the protocol.

The gateway decides what follows from it, by the table of `handlers/_run/classify.py`. This module
never raises: the attempt has ended, and without a Result the task would wait for its lease.
"""

from __future__ import annotations

from jobherd.handlers._policy.durations import at_least_zero
from jobherd.handlers._remote import messages
from jobherd.handlers._remote.events import Ref, Stop
from jobherd.handlers._run.dispositions import (
    Abandon,
    Completed,
    Failed,
    JobCancelled,
    JobDrained,
    JobTimeout,
    Nack,
    Poison,
    SignalledOutcome,
    Snooze,
)
from jobherd.handlers._values.outcome import JOB_TIMEOUT, PAYLOAD_INVALID, WORKER_SERIALIZATION_ERROR, Raised
from jobherd.handlers._values.payload import ResultError, encode_result
from jobherd.handlers._values.sanitize import describe_exception, sanitize

_CODE_BYTES = 100
NOT_STARTED = -1.0
"""`ran_seconds` of a task that was not started."""


def result_of(ref: Ref, ending: object, *, ran: float, stop: Stop | None = None) -> messages.Result:
    """Return the Result of a task. Never raises.

    Args:
        ref: the task.
        ending: what the handler returned, or `Raised(exception)`.
        ran: seconds that it ran.
        stop: why the gateway asked to stop the task, if it did. A handler that raised has ended
            because of it. A handler that returned a value has finished all the same.
    """
    result = messages.Result(task_id=ref.task, claim=ref.claim, ran_seconds=ran)
    try:
        _judge(result, ending, stop)
    except BaseException as problem:  # a subclass of a disposition raised: the failure must be reported
        message, _ = describe_exception(problem)
        error = sanitize(f"what the handler returned or raised could not be interpreted: {message}")
        result.failed.CopyFrom(messages.Failed(error=error))
    return result


def cancelled(ref: Ref) -> messages.Result:
    """Return the Result of a task that was canceled before it started."""
    return messages.Result(task_id=ref.task, claim=ref.claim, ran_seconds=NOT_STARTED, cancelled=messages.Cancelled())


def expired(ref: Ref) -> messages.Result:
    """Return the Result of a task that expired before it started."""
    return messages.Result(task_id=ref.task, claim=ref.claim, ran_seconds=NOT_STARTED, expired=messages.Cancelled())


def unreadable(ref: Ref, problem: Exception) -> messages.Result:
    """Return the Result of a task whose payload cannot be read. It fails permanently."""
    failed = messages.Failed(error=sanitize(problem), code=PAYLOAD_INVALID, poison=True)
    return messages.Result(task_id=ref.task, claim=ref.claim, ran_seconds=NOT_STARTED, failed=failed)


def rejected(result: messages.Result, why: str) -> messages.Result:
    """Return the Result that replaces one that the gateway rejected as invalid."""
    failed = messages.Failed(
        error=sanitize(f"the gateway rejected the result: {why}"), code=WORKER_SERIALIZATION_ERROR, poison=True
    )
    return messages.Result(task_id=result.task_id, claim=result.claim, ran_seconds=result.ran_seconds, failed=failed)


def _judge(result: messages.Result, ending: object, stop: Stop | None) -> None:
    if not isinstance(ending, Raised | SignalledOutcome):
        _complete(result, ending)
        return
    raised = ending.exception if isinstance(ending, Raised) else None
    said: BaseException = ending.exception if isinstance(ending, Raised) else ending
    if raised is not None and not isinstance(raised, SignalledOutcome):
        if stop is Stop.CANCELLED:
            said = JobCancelled()
        elif stop is Stop.TIMEOUT:
            said = JobTimeout("the job ran past its timeout")
    trace = "" if raised is None else describe_exception(raised)[1]
    match said:
        case Completed(result=value):
            _complete(result, value)
        case Failed(error=error, code=code):
            text = sanitize(error) or "the handler returned a failure without a reason"
            _fail(result, text, code or "", trace)
        case Nack(delay=delay, reason=reason):
            result.nack.reason = sanitize(reason)
            if delay is not None:
                result.nack.delay_seconds = at_least_zero(delay, field="Nack delay")
        case Snooze(delay=delay):
            result.snooze.delay_seconds = at_least_zero(delay, field="Snooze delay")
        case Abandon() | JobDrained():
            result.abandon.SetInParent()
        case Poison(message=text, code=code):
            _fail(result, sanitize(text) or "the handler marked the job as poison", code, trace, poison=True)
        case JobCancelled():
            result.cancelled.SetInParent()
        case JobTimeout():
            _fail(result, f"JobTimeout: {sanitize(said) or 'the job ran past its timeout'}", JOB_TIMEOUT, trace)
        case _:
            _fail(result, describe_exception(said)[0], "", trace)


def _complete(result: messages.Result, value: object) -> None:
    try:
        text = encode_result(value)
    except ResultError as problem:
        # The work is done: another attempt would repeat its effects and return the same.
        error = f"the handler has finished, but its result cannot be stored: {sanitize(problem)}"
        _fail(result, error, WORKER_SERIALIZATION_ERROR, "", poison=True)
    else:
        if text is None:
            result.completed.SetInParent()
        else:
            result.completed.result = text.encode()


def _fail(result: messages.Result, error: str, code: object, trace: str, *, poison: bool = False) -> None:
    result.failed.CopyFrom(
        messages.Failed(
            error=sanitize(error), code=sanitize(code, _CODE_BYTES) if code else "", traceback=trace, poison=poison
        )
    )
