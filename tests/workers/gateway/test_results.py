"""Tests what the gateway records for each outcome that a remote worker can send."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobherd.handlers._policy.durations import LONGEST
from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway.actions import Job
from jobherd.workers.gateway.results import DEFAULT, InvalidResultError, finished_of, rules_of
from jobherd.workers.job.finished import is_plain, settlement

FIRST = Job(7, "mail", attempt=1, max_attempts=None)
LAST = FIRST._replace(attempt=5)


class Middle:
    """A random generator that produces no jitter."""

    def random(self) -> float:
        return 0.5


def record(attempt: Job = FIRST, rules: Any = DEFAULT, **fields: Any) -> Any:
    result = m.Result(task_id=7, claim=3, **({"ran_seconds": 1.5} | fields))
    return finished_of(result, attempt, rules, now=100.0, random=Middle())


OUTCOMES = [
    ("completed", {"completed": m.Completed()}, FIRST, ("ok", 0, None, None)),
    ("failed", {"failed": m.Failed(error="no route", code="NO_ROUTE")}, FIRST, ("retry", 30, "NO_ROUTE", "no route")),
    ("no code", {"failed": m.Failed(error="x")}, FIRST, ("retry", 30, "UNHANDLED_ERROR", "x")),
    (
        "no words",
        {"failed": m.Failed()},
        FIRST,
        ("retry", 30, "UNHANDLED_ERROR", "the handler returned a failure without a reason"),
    ),
    ("last attempt", {"failed": m.Failed(error="x")}, LAST, ("failed", 0, "UNHANDLED_ERROR", "x")),
    (
        "retry after",
        {"failed": m.Failed(error="x", retry_after_seconds=7)},
        FIRST,
        ("retry", 7, "UNHANDLED_ERROR", "x"),
    ),
    ("poison", {"failed": m.Failed(error="x", poison=True)}, FIRST, ("poison", 0, "POISON", "x")),
    ("poison code", {"failed": m.Failed(error="x", code="BAD", poison=True)}, FIRST, ("poison", 0, "BAD", "x")),
    ("nack", {"nack": m.Nack(delay_seconds=4, reason="busy")}, FIRST, ("retry", 4, "NACK", "busy")),
    ("nack below 0", {"nack": m.Nack(delay_seconds=-4, reason="busy")}, FIRST, ("retry", 0, "NACK", "busy")),
    ("nack without delay", {"nack": m.Nack(reason="busy")}, FIRST, ("retry", 30, "NACK", "busy")),
    ("last nack", {"nack": m.Nack(delay_seconds=4, reason="busy")}, LAST, ("failed", 0, "NACK", "busy")),
    ("snooze", {"snooze": m.Snooze(delay_seconds=60)}, LAST, ("snoozed", 60, None, None)),
    ("abandon", {"abandon": m.Abandon()}, LAST, ("abandoned", 0, None, None)),
    ("cancelled", {"cancelled": m.Cancelled()}, FIRST, ("cancelled", 0, "JOB_CANCELLED", "cancelled while it ran")),
]


@pytest.mark.parametrize(
    ("fields", "attempt", "expected"), [case[1:] for case in OUTCOMES], ids=[case[0] for case in OUTCOMES]
)
def test_each_remote_outcome_becomes_the_outcome_of_a_local_attempt(fields: Any, attempt: Job, expected: Any) -> None:
    finished = record(attempt, **fields)
    outcome = finished.outcome
    assert (outcome.label, outcome.delay, outcome.code, outcome.error) == expected
    assert outcome.traceback is None
    assert outcome.started
    assert (finished.job, finished.ran, finished.ended, finished.crashed) == (7, 1.5, 100.0, 0)


def test_tested_outcomes_include_every_outcome_of_the_protocol() -> None:
    tested = {m.Result(**case[1]).WhichOneof("outcome") for case in OUTCOMES} | {"expired"}
    assert tested == {field.name for field in m.Result.DESCRIPTOR.oneofs_by_name["outcome"].fields}


def test_expired_or_unstarted_job_counts_no_attempt() -> None:
    expired = record(expired=m.Cancelled(), ran_seconds=-1)
    assert (expired.outcome.label, expired.outcome.counted, expired.ran) == ("expired", False, None)
    cancelled = record(cancelled=m.Cancelled(), ran_seconds=-1)
    assert (cancelled.outcome.label, cancelled.outcome.counted, cancelled.ran) == ("cancelled", False, None)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (FIRST, ("retry", 0.0)),
        (FIRST._replace(crashes=1, attempt=2), ("retry", 60.0)),
        (FIRST._replace(crashes=2, attempt=3), ("failed", 0.0)),
        (LAST, ("failed", 0.0)),
        (FIRST._replace(max_attempts=1), ("failed", 0.0)),
    ],
)
def test_first_crash_is_retried_at_once_and_the_last_allowed_crash_fails_the_job(attempt: Job, expected: Any) -> None:
    crash = m.Failed(error="killed by signal 9", crash=m.Crash(signal=9, post_mortem=b'{"sentence":"oom"}'))
    finished = record(attempt, failed=crash)
    assert (finished.outcome.label, finished.outcome.delay) == expected
    assert (finished.outcome.code, finished.outcome.error) == ("WORKER_CRASHED", "killed by signal 9")
    assert (finished.crashed, finished.post_mortem) == (1, '{"sentence":"oom"}')


def test_result_is_stored_as_json_and_invalid_json_is_rejected() -> None:
    assert record(completed=m.Completed(result=b'{"pages": 3}')).outcome.result == '{"pages":3}'
    for text in (b"{", b"\xff", b"NaN", b'"\\ud800"'):
        with pytest.raises(InvalidResultError, match=r"completed\.result"):
            record(completed=m.Completed(result=text))
    nul = record(completed=m.Completed(result=b'"a\\u0000b"'))
    assert (nul.outcome.label, nul.outcome.code) == ("failed", "WORKER_SERIALIZATION_ERROR")


def test_result_without_an_outcome_is_rejected() -> None:
    with pytest.raises(InvalidResultError, match="outcome: none is set"):
        record()


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("ran_seconds", {"completed": m.Completed(), "ran_seconds": math.nan}),
        ("nack.delay_seconds", {"nack": m.Nack(delay_seconds=math.inf)}),
        ("snooze.delay_seconds", {"snooze": m.Snooze(delay_seconds=math.nan)}),
        ("failed.retry_after_seconds", {"failed": m.Failed(retry_after_seconds=-math.inf)}),
    ],
)
def test_nan_or_infinite_number_is_rejected_with_the_name_of_its_field(field: str, fields: Any) -> None:
    with pytest.raises(InvalidResultError, match=field.replace(".", r"\.")):
        record(**fields)


def test_invalid_log_or_usage_is_dropped_and_the_outcome_is_kept() -> None:
    kept = record(completed=m.Completed(), log=b'{"output": "hello"}', usage=b'{"cpu": 1}')
    assert (kept.log, kept.usage) == ('{"output":"hello"}', '{"cpu":1}')
    assert not is_plain([kept])
    for bad in (b"x", b"[]", b'{"a":"\xff"}', b'{"a":"' + b"x" * 300_000 + b'"}'):
        dropped = record(completed=m.Completed(), log=bad, usage=bad)
        assert (dropped.log, dropped.usage, dropped.outcome.label) == (None, None, "ok")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"log": b'{"a":1}'}, (1.5, None, '{"a":1}', True)),
        ({"usage": b'{"a":1}'}, (1.5, '{"a":1}', None, True)),
        ({"ran_seconds": -1.0}, (None, None, None, False)),
        ({"ran_seconds": 1e300}, (LONGEST, None, None, True)),
    ],
)
def test_completed_job_without_a_result_keeps_its_run_time_usage_and_log(fields: Any, kept: Any) -> None:
    finished = record(completed=m.Completed(), **fields)
    assert (finished.ran, finished.usage, finished.log, finished.outcome.started) == kept


def test_error_texts_are_shortened_and_lose_nul_characters() -> None:
    finished = record(failed=m.Failed(error="a\0" + "x" * 50_000, code="c" * 500, traceback="t" * 200_000))
    outcome = finished.outcome
    assert "\0" not in (outcome.error or "")
    assert len((outcome.error or "").encode()) <= 10_000
    assert len((outcome.code or "").encode()) <= 100
    assert len((outcome.traceback or "").encode()) <= 64_000


def test_rules_of_a_kind_are_those_that_the_client_declares() -> None:
    rules = rules_of(
        m.KindPolicy(kind="mail", max_attempts=2, backoff_base_seconds=10, backoff_factor=3, keep_completed_days=0)
    )
    assert (rules.keep_completed, rules.keep_failed) == (0, DEFAULT.keep_failed)
    assert record(rules=rules, completed=m.Completed()).keep == 0
    assert record(FIRST._replace(webhook=True), rules, completed=m.Completed()).keep == 1
    assert record(rules=rules, failed=m.Failed(error="x")).outcome.delay == 10
    assert record(FIRST._replace(attempt=2), rules, failed=m.Failed(error="x")).outcome.label == "failed"
    assert rules_of(m.KindPolicy(kind="mail")) == DEFAULT


@pytest.mark.parametrize(
    ("field", "declared"),
    [
        ("jitter", m.KindPolicy(backoff_base_seconds=1, backoff_jitter=2)),
        ("base", m.KindPolicy(backoff_base_seconds=math.nan)),
        ("factor", m.KindPolicy(backoff_factor=math.inf)),
        ("timeout", m.KindPolicy(timeout_seconds=-1)),
        ("queue", m.KindPolicy(queue="\n")),
    ],
)
def test_invalid_policy_is_rejected_with_the_name_of_its_field(field: str, declared: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=field):
        rules_of(declared)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 9), st.integers(0, 9))
def test_any_result_message_is_rejected_or_can_be_recorded(data: bytes, attempts: int, crashes: int) -> None:
    try:
        result = m.Result.FromString(data)
    except m.DECODE_ERRORS:
        return
    attempt = FIRST._replace(attempt=attempts, crashes=crashes)
    try:
        finished = finished_of(result, attempt, now=1.0, random=random.Random(1))
    except InvalidResultError:
        return
    parameters = settlement(1, 3, [finished], ran_on="host/1", now=2.0)
    assert 0 <= finished.outcome.delay <= 100 * 365 * 86400
    assert "\0" not in str(parameters)
