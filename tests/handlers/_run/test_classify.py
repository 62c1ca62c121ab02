from __future__ import annotations

import math
from typing import get_args

import pytest

from jobherd import (
    Abandon,
    Backoff,
    BindingError,
    Completed,
    Disposition,
    Failed,
    JobCancelled,
    JobDrained,
    JobSuspended,
    JobTimeout,
    Nack,
    PayloadError,
    Poison,
    Retry,
    Snooze,
    handler,
)
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.unrunnable import unknown_kind, unreadable
from jobherd.handlers._values.outcome import OK, Raised


class Even:
    def random(self):
        return 0.5


class NotReady(Exception):
    pass


@handler("demo:plain")
def plain():
    pass


@handler(
    "demo:full",
    max_attempts=3,
    poison_on=(FileNotFoundError,),
    backoff_on={TimeoutError: "7s", NotReady: ["1s", "2s"], JobTimeout: "9s"},
    backoff=Backoff("10s", jitter=0),
)
def full():
    pass


@handler("demo:picky", retry_on=(ConnectionError,))
def picky():
    pass


def judge(ending, *, by=plain, **more):
    return outcome_of(ending, policy=by and by.policy, random=Even(), **more)


def summary(outcome):
    return outcome.label, outcome.state, outcome.delay, outcome.counted, outcome.code


def thrown(exception):
    try:
        raise exception
    except BaseException as problem:
        return Raised(problem)


MEANINGS = [
    (Completed(), ("ok", "completed", 0, True, None)),
    (Completed([1]), ("ok", "completed", 0, True, None)),
    (Failed("no"), ("retry", "scheduled", 30, True, "UNHANDLED_ERROR")),
    (Failed("no", code="MAIL"), ("retry", "scheduled", 30, True, "MAIL")),
    (Nack("5m", "later"), ("retry", "scheduled", 300, True, "NACK")),
    (Nack(0), ("retry", "scheduled", 0, True, "NACK")),
    (Nack(), ("retry", "scheduled", 30, True, "NACK")),
    (Retry("5m", "again"), ("retry", "scheduled", 300, True, "NACK")),
    (Retry(), ("retry", "scheduled", 30, True, "NACK")),
    (Snooze("1h"), ("snoozed", "scheduled", 3600, False, None)),
    (Abandon(), ("abandoned", "ready", 0, False, None)),
    (Poison("bad"), ("poison", "failed", 0, True, "POISON")),
    (Poison("bad", code="GONE"), ("poison", "failed", 0, True, "GONE")),
]
"""Each disposition, with the outcome of an attempt before the last."""


def test_every_disposition_has_an_expected_outcome():
    assert {type(said) for said, _ in MEANINGS} - {Retry} == set(get_args(Disposition))


@pytest.mark.parametrize(("said", "expected"), MEANINGS, ids=repr)
def test_disposition_means_the_same_returned_or_raised(said, expected):
    assert summary(judge(said)) == expected
    assert summary(judge(thrown(said))) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Failed("no"), ("failed", "failed", 0, True, "UNHANDLED_ERROR")),
        (Nack("5m", "later"), ("failed", "failed", 0, True, "NACK")),
        (Retry(), ("failed", "failed", 0, True, "NACK")),
        (ValueError(), ("failed", "failed", 0, True, "UNHANDLED_ERROR")),
        (JobTimeout(), ("failed", "failed", 0, True, "JOB_TIMEOUT")),
        (Snooze("1h"), ("snoozed", "scheduled", 3600, False, None)),
        (Abandon(), ("abandoned", "ready", 0, False, None)),
        (Completed(), ("ok", "completed", 0, True, None)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("attempt", [5, 6, 1000])
def test_outcome_that_would_be_retried_fails_on_or_after_the_last_attempt(said, expected, attempt):
    assert summary(judge(thrown(said), attempt=attempt)) == expected


def test_max_attempts_of_the_job_overrides_that_of_the_handler():
    assert judge(thrown(ValueError()), attempt=5, max_attempts=6).label == "retry"
    assert judge(thrown(ValueError()), attempt=1, max_attempts=1).label == "failed"


def test_a_return_value_is_the_result():
    assert judge(None) is OK
    assert judge({"pages": 3}).result == '{"pages":3}'
    assert judge(Completed({"pages": 3})).result == '{"pages":3}'
    assert judge(0).result == "0"
    assert judge(False).result == "false"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "result at $ is nan"),
        ({"a": {1}}, "result at $.a is a set, which JSON cannot represent: return sorted(value)"),
        (object(), "result at $ is an object, which JSON cannot represent: return its key, or a dict"),
        (ValueError("x"), "raise it instead"),
        ("x" * 2_000_000, "more than 1,000,000"),
        ("\0", "NUL"),
        (Completed(b""), "bytes"),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.promise("D23", "C36")
def test_return_value_that_is_not_valid_json_fails_permanently_with_the_reason(value, says):
    outcome = judge(value)
    assert summary(outcome) == ("failed", "failed", 0, True, "WORKER_SERIALIZATION_ERROR")
    assert says in outcome.error
    assert outcome.error.startswith("the handler has finished, but")


@pytest.mark.parametrize(
    "exception",
    [
        ValueError("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        MemoryError(),
        RecursionError(),
        StopIteration(),
        AssertionError(),
        ExceptionGroup("g", [ValueError(), Nack(5)]),
        BaseExceptionGroup("g", [SystemExit()]),
    ],
    ids=repr,
)
def test_every_exception_is_a_failed_attempt(exception):
    outcome = judge(thrown(exception))
    assert summary(outcome) == ("retry", "scheduled", 30, True, "UNHANDLED_ERROR")
    assert outcome.error.startswith(type(exception).__name__)
    assert "Traceback" in outcome.traceback


def test_retry_delay_grows_with_the_attempts():
    assert [judge(thrown(ValueError()), attempt=n, max_attempts=99).delay for n in (1, 2, 3, 9)] == [30, 60, 120, 3600]


def test_backoff_on_sets_the_delay_of_an_exception():
    assert judge(thrown(TimeoutError()), by=full).delay == 7
    assert judge(thrown(NotReady()), by=full, attempt=2).delay == 2
    assert judge(thrown(ValueError()), by=full, attempt=2).delay == 20
    assert judge(thrown(JobTimeout()), by=full).delay == 9


def test_poison_on_makes_an_exception_a_permanent_failure():
    outcome = judge(thrown(FileNotFoundError("gone")), by=full)
    assert summary(outcome) == ("poison", "failed", 0, True, "POISON")
    assert outcome.error == "FileNotFoundError: gone"


def test_retry_on_limits_retries_to_the_named_exceptions_and_timeouts():
    assert judge(thrown(ConnectionResetError()), by=picky).label == "retry"
    assert summary(judge(thrown(ValueError("x")), by=picky)) == ("failed", "failed", 0, True, "UNHANDLED_ERROR")
    assert judge(thrown(JobTimeout()), by=picky).label == "retry"


@handler(
    "demo:coded",
    retry_on=("BUSY", "JOB_TIMEOUT", OSError),
    poison_on="NO_ORDER",
    backoff_on={"BUSY": "7s", "JOB_TIMEOUT": "8s"},
)
def coded():
    pass


@handler("demo:hasty", poison_on=("JOB_TIMEOUT", "UNHANDLED_ERROR"))
def hasty():
    pass


@pytest.mark.promise("C16", "C34", "D20")
@pytest.mark.parametrize(
    ("ending", "by", "expected"),
    [
        (Failed("x", code="BUSY"), coded, ("retry", "scheduled", 7, True, "BUSY")),
        (Raised(Failed("x", code="BUSY")), coded, ("retry", "scheduled", 7, True, "BUSY")),
        (Failed("x", code="OTHER"), coded, ("failed", "failed", 0, True, "OTHER")),
        (Failed("x"), coded, ("failed", "failed", 0, True, "UNHANDLED_ERROR")),
        (Failed("x", code="NO_ORDER"), coded, ("poison", "failed", 0, True, "NO_ORDER")),
        (Raised(JobTimeout()), coded, ("retry", "scheduled", 8, True, "JOB_TIMEOUT")),
        (Raised(OSError()), coded, ("retry", "scheduled", 30, True, "UNHANDLED_ERROR")),
        (Raised(ValueError()), coded, ("failed", "failed", 0, True, "UNHANDLED_ERROR")),
        (Nack(5), coded, ("retry", "scheduled", 5, True, "NACK")),
        (Failed("x", code="BUSY"), picky, ("retry", "scheduled", 30, True, "BUSY")),
        (Raised(JobTimeout()), hasty, ("poison", "failed", 0, True, "JOB_TIMEOUT")),
        (Raised(ValueError()), hasty, ("poison", "failed", 0, True, "POISON")),
        (Failed("x", code="MINE"), hasty, ("retry", "scheduled", 30, True, "MINE")),
    ],
    ids=repr,
)
def test_retry_on_poison_on_and_backoff_on_accept_error_codes(ending, by, expected):
    assert summary(judge(ending, by=by)) == expected


def test_each_interruption_has_its_own_outcome():
    assert summary(judge(thrown(JobTimeout()))) == ("retry", "scheduled", 30, True, "JOB_TIMEOUT")
    assert judge(thrown(JobTimeout("after 5 s"))).error == "JobTimeout: after 5 s"
    assert summary(judge(thrown(JobCancelled()))) == ("cancelled", "cancelled", 0, True, "JOB_CANCELLED")
    assert summary(judge(thrown(JobDrained()))) == ("abandoned", "ready", 0, False, None)


def test_exception_that_follows_an_interruption_is_recorded_as_the_interruption():
    other = thrown(ValueError("clean-up failed"))
    assert judge(other, interruption=JobTimeout()).code == "JOB_TIMEOUT"
    assert "clean-up failed" in judge(other, interruption=JobTimeout()).traceback
    assert judge(other, interruption=JobDrained()).label == "abandoned"
    assert judge(other, interruption=JobCancelled()).label == "cancelled"


def test_value_or_disposition_after_an_interruption_is_the_outcome():
    assert judge({"done": 1}, interruption=JobTimeout()).label == "ok"
    assert judge(thrown(Nack(5)), interruption=JobTimeout()).delay == 5
    assert judge(thrown(Poison("x")), interruption=JobTimeout()).label == "poison"


def test_payload_error_raised_inside_a_handler_is_retried():
    assert judge(thrown(PayloadError("payload at $.x is nan"))).label == "retry"


def test_invalid_payload_fails_permanently():
    for problem in (
        PayloadError("payload at $ is odd"),
        BindingError("payload at $.x is missing"),
        RuntimeError("what"),
    ):
        outcome = unreadable(problem)
        assert summary(outcome) == ("poison", "failed", 0, True, "PAYLOAD_INVALID")
    assert unreadable(BindingError("payload at $.x is missing")).error == "payload at $.x is missing"


def test_job_of_an_unknown_kind_is_snoozed_for_a_day_and_then_fails():
    young, old = unknown_kind("no:such", age=10), unknown_kind("no:such", age=86401)
    assert summary(young) == ("snoozed", "scheduled", 60, False, "WORKER_RESOLUTION_ERROR")
    assert summary(old) == ("failed", "failed", 0, False, "WORKER_RESOLUTION_ERROR")
    assert "'no:such'" in young.error
    assert unknown_kind("x", age=10, limit=5).state == "failed"
    assert unknown_kind("x\0" * 1000, age=1, delay=5).delay == 5


class EvilMeta(type):
    def __instancecheck__(cls, instance):
        raise SystemExit

    def __subclasscheck__(cls, subclass):
        raise SystemExit


class Evil(Exception, metaclass=EvilMeta):
    def __str__(self):
        raise SystemExit


class EvilNack(Nack):
    @property
    def delay(self):
        raise SystemExit

    reason = delay


class EvilResult:
    @property
    def __class__(self):
        raise SystemExit


def test_hostile_exceptions_and_results_still_get_an_outcome():
    by = handler("demo:evil", poison_on=(Evil,))(lambda: None)
    for ending in (thrown(Evil()), EvilNack(1), thrown(EvilNack(1)), thrown(ValueError()), EvilResult()):
        outcome = judge(ending, by=by)
        assert outcome.state in {"scheduled", "failed"}
        assert outcome.error.encode()
        assert judge(ending, by=by, attempt=5).state == "failed"


class EvilError(Exception):
    @property
    def __class__(self):
        raise SystemExit


@pytest.mark.parametrize(
    ("interruption", "state", "code"),
    [
        (JobCancelled("no more"), "cancelled", "JOB_CANCELLED"),
        (JobDrained("leaving"), "ready", None),
        (JobTimeout("ran longer than 1 s"), "scheduled", "JOB_TIMEOUT"),
        (None, "scheduled", "UNHANDLED_ERROR"),
    ],
)
def test_interruption_is_the_outcome_even_if_the_raised_exception_cannot_be_classified(interruption, state, code):
    """Otherwise a canceled job would run again."""
    outcome = judge(thrown(EvilError()), interruption=interruption)
    assert (outcome.state, outcome.code) == (state, code)
    assert judge(EvilResult(), interruption=interruption).code == "UNHANDLED_ERROR", (
        "the outcome of a handler that returned comes from its result"
    )
    last = judge(thrown(EvilError()), interruption=interruption, attempt=5)
    assert last.state == ("failed" if state == "scheduled" else state)


@pytest.mark.parametrize("of", [Nack, Snooze])
@pytest.mark.parametrize(
    "delay",
    [math.nan, math.inf, 1e300, "soon", -(10**400), object()],
    ids=["nan", "infinite", "far", "text", "long", "other"],
)
def test_invalid_delay_of_a_disposition_is_never_sent_to_the_database(of, delay):
    """The database would reject it, and the job would be claimed again at once, indefinitely."""
    outcome = judge(type("Later", (of,), {"delay": property(lambda _: delay)})(5))
    assert (outcome.state, outcome.code) == ("scheduled", "UNHANDLED_ERROR")
    assert 0 < outcome.delay < 100


def test_hostile_error_texts_are_sanitized_and_limited():
    for said in (
        Failed("a\0\ud800" * 9999, code="\0" * 999),
        Poison("\0", code="\ud800"),
        Nack(1, "\0"),
        Failed(None, code=5),
    ):
        outcome = judge(thrown(said))
        for text in (outcome.error, outcome.code, outcome.traceback or ""):
            assert "\0" not in text
            assert len(text.encode()) <= 64_000
        assert len(outcome.code.encode()) <= 100


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("A\r\nB", "A\\u000d\\u000aB"),
        ("\x1b[2J", "\\u001b[2J"),
        ("\u202etxt", "\\u202etxt"),
        ("MAIL_REFUSED", "MAIL_REFUSED"),
    ],
)
def test_error_code_has_only_printable_characters_and_at_most_100_bytes(code, kept):
    assert outcome_of(Failed("no", code=code)).code == kept
    assert len(outcome_of(Failed("no", code="\x00\x1b" * 500)).code.encode()) <= 100


def test_only_a_suspension_made_by_jobherd_suspends_the_job():
    suspended = judge(Raised(JobSuspended("sleeps", 60.0)))
    assert (suspended.label, suspended.state, suspended.delay, suspended.counted) == (
        "suspended",
        "scheduled",
        60.0,
        False,
    )
    assert judge(Raised(JobSuspended("made up"))).label == "retry"
