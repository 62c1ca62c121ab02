"""Turns the Result that a remote worker sent into the outcome that is recorded.

The rules are those of a local attempt (`handlers/_run/classify.py`). This module uses no clock, no
database and no gRPC. It does not trust the client: every number and text of a Result is checked or
bounded here, because a settlement that the database rejects delays the others that travel with it.
"""

from __future__ import annotations

import math
import random as _random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from jobherd.handlers._policy.backoff import Backoff, Dice, wait
from jobherd.handlers._policy.durations import LONGEST
from jobherd.handlers._policy.policy import Policy, check_policy
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.dispositions import Abandon, Failed, JobCancelled, Nack, Poison, Snooze
from jobherd.handlers._values.outcome import EXPIRED, OK, WORKER_CRASHED, Outcome, Raised
from jobherd.handlers._values.sanitize import TRACEBACK_BYTES, sanitize
from jobherd.workers.job.crashes import after_crash
from jobherd.workers.job.finished import Finished

if TYPE_CHECKING:
    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.actions import Job

MOST_JSON: Final = 256 * 1024
"""Longest log, usage report or crash report in bytes. A longer one is left out."""


class InvalidResultError(ValueError):
    """A Result that changes nothing. Its text names the field, for the author of the client."""


@dataclass(frozen=True, slots=True)
class KindRules:
    """How the attempts of a kind end: what the client declared in its Hello, or the defaults."""

    policy: Policy
    keep_completed: int
    """Days that a completed job is kept."""
    keep_failed: int
    sealed: bool = False
    """The gateway cannot read payloads and results, and people must not read the rest of what a job reports."""
    timeout: float = 0.0
    """Longest duration of an attempt, in seconds, for jobs that have none. 0: none."""


DEFAULT: Final = KindRules(Policy(), Policy().keep_completed_days, Policy().keep_failed_days)


def rules_of(declared: m.KindPolicy) -> KindRules:
    """Return the checked rules of a kind. A field of 0 means its default.

    Raises ValueError or TypeError that names the field.
    """
    options: dict[str, object] = {
        name: value
        for name, value in (
            ("queue", declared.queue),
            ("max_attempts", declared.max_attempts),
            ("max_crashes", declared.max_crashes),
            ("timeout", declared.timeout_seconds),
            ("priority", declared.priority),
            ("max_running", declared.max_running),
            ("redact", tuple(declared.redact)),
        )
        if value
    }
    curve = (
        declared.backoff_base_seconds,
        declared.backoff_factor,
        declared.backoff_jitter,
        declared.backoff_max_seconds,
    )
    if any(curve):
        base, factor, jitter, cap = curve
        options["backoff"] = Backoff(base, max(factor, 1.0), jitter, cap or Backoff().cap)
    return KindRules(
        check_policy(**options),
        declared.keep_completed_days if declared.HasField("keep_completed_days") else DEFAULT.keep_completed,
        declared.keep_failed_days if declared.HasField("keep_failed_days") else DEFAULT.keep_failed,
        declared.sealed,
        declared.timeout_seconds,
    )


def finished_of(
    result: m.Result, task: Job, rules: KindRules = DEFAULT, *, now: float, random: Dice = _random
) -> Finished:
    """Return what to record for the job of a Result.

    Args:
        result: as the client sent it.
        task: the task that it is about.
        rules: of the task's kind.
        now: monotonic time at which the Result arrived. The client's clock is not used.
        random: source of the backoff's jitter.

    Raises InvalidResultError: the Result has no outcome, or one that cannot be read.
    """
    case = result.WhichOneof("outcome")
    if case is None:
        message = "outcome: none is set; set exactly one, such as `completed`"
        raise InvalidResultError(message)
    seconds = result.ran_seconds
    if case == "completed" and 0 <= seconds <= LONGEST and not (result.completed.result or result.usage or result.log):
        # Cost: most results are like this, and the rest of this function takes three times as long.
        keep = rules.keep_completed
        return Finished(task.id, OK, seconds, now, max(keep, 1) if task.webhook else keep)
    crashed = 0
    if case == "expired":
        outcome = EXPIRED
    elif case == "failed" and result.failed.HasField("crash"):
        outcome, crashed = _crashed(result.failed, task, rules.policy, random), 1
    else:
        outcome = _outcome(case, result, task, rules.policy, random)
    ran: float | None = _seconds(seconds, "ran_seconds")
    if ran is None or ran < 0:
        ran = None
        outcome = replace(outcome, started=False)
    keep = rules.keep_completed if outcome.label == "ok" else rules.keep_failed
    return Finished(
        task.id,
        outcome,
        ran,
        now,
        max(keep, 1) if task.webhook else keep,  # The webhook call reads the row of the history.
        _json(result.usage),
        post_mortem=_json(result.failed.crash.post_mortem) if crashed else None,
        crashed=crashed,
        log=_json(result.log),
    )


def _outcome(case: str, result: m.Result, task: Job, policy: Policy, random: Dice) -> Outcome:
    """Return the outcome of an attempt that its handler ended."""
    ending: object
    trace = ""
    match case:
        case "completed":
            ending = _value(result.completed.result)
        case "failed":
            failed, trace = result.failed, result.failed.traceback
            code = failed.code or None
            if failed.poison:
                ending = Poison(failed.error, *([code] if code else []))
            else:
                ending = Failed(failed.error, code)
                if after := _delay(failed.retry_after_seconds, "failed.retry_after_seconds"):
                    policy = replace(policy, backoff=(after,))
        case "nack":
            nack = result.nack
            delay = _delay(nack.delay_seconds, "nack.delay_seconds") if nack.HasField("delay_seconds") else None
            ending = Nack(delay, nack.reason)
        case "snooze":
            ending = Snooze(_delay(result.snooze.delay_seconds, "snooze.delay_seconds"))
        case "abandon":
            ending = Abandon()
        case _:
            ending = Raised(JobCancelled())
    outcome = outcome_of(ending, policy=policy, attempt=task.attempt, max_attempts=task.max_attempts, random=random)
    if case == "cancelled":
        return replace(outcome, traceback=None)  # Otherwise that of the exception made here.
    return replace(outcome, traceback=sanitize(trace, TRACEBACK_BYTES)) if trace else outcome


def _crashed(failed: m.Failed, task: Job, policy: Policy, random: Dice) -> Outcome:
    """Return the outcome of an attempt whose process died on the remote machine."""
    most = policy.max_attempts if task.max_attempts is None else task.max_attempts
    label, delay = after_crash(
        last=task.attempt >= most,
        crashes=task.crashes,
        max_crashes=policy.max_crashes,
        backoff=wait(policy.backoff, task.attempt, random),
    )
    error = sanitize(failed.error) or "the process that ran the job died"
    trace = sanitize(failed.traceback, TRACEBACK_BYTES) or None
    return Outcome(label, delay=delay, error=error, code=WORKER_CRASHED, traceback=trace)


def _value(text: bytes) -> object:
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError as problem:
        message = f"completed.result: not valid JSON in UTF-8: {problem}"
        raise InvalidResultError(message) from problem


def _seconds(value: float, field: str) -> float:
    if not math.isfinite(value):
        message = f"{field}: {value} is not a number of seconds"
        raise InvalidResultError(message)
    return min(value, LONGEST)


def _delay(value: float, field: str) -> float:
    return max(0.0, _seconds(value, field))


def _json(text: bytes) -> str | None:
    """Return a JSON object that is recorded with the outcome, or None if there is none or it cannot be stored.

    A report that is not readable must not cost the outcome.
    """
    if not text or len(text) > MOST_JSON:
        return None
    try:
        value = orjson.loads(text)
        # PostgreSQL stores no NUL in a JSON text.
        return orjson.dumps(value).decode().replace("\\u0000", "\\ufffd") if isinstance(value, dict) else None
    except (orjson.JSONDecodeError, TypeError, RecursionError):
        return None
