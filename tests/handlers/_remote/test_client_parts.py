"""Parts of the client that need no stream: outcomes, statuses, delays, addresses and `Task`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd import (
    Abandon,
    Completed,
    Failed,
    JobCancelled,
    JobDrained,
    JobTimeout,
    Nack,
    Poison,
    Retry,
    Snooze,
)
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.errors import Verdict, judge_stream
from jobherd.handlers._remote.events import Ref, Stop
from jobherd.handlers._remote.outcomes import cancelled, expired, rejected, result_of, unreadable
from jobherd.handlers._remote.reconnect import FIRST_DELAY, LONGEST_DELAY, Reconnect, read_addresses
from jobherd.handlers._remote.task import Task
from jobherd.handlers._values.outcome import Raised

REF = Ref(5, 7)


def outcome(ending, stop=None):
    result = result_of(REF, ending, ran=1.5, stop=stop)
    assert (result.task_id, result.claim, result.ran_seconds) == (5, 7, 1.5)
    name = result.WhichOneof("outcome")
    return name, getattr(result, name)


def failed(error, **fields):
    return "failed", m.Failed(error=error, **fields)


class Rude(Exception):
    def __str__(self):
        raise RuntimeError


class Strange(Snooze):
    @property
    def delay(self):
        return "tomorrow"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (None, ("completed", m.Completed())),
        (Completed(), ("completed", m.Completed())),
        ([1, {"a": None}], ("completed", m.Completed(result=b'[1,{"a":null}]'))),
        (Completed("x"), ("completed", m.Completed(result=b'"x"'))),
        (Raised(Completed("x")), ("completed", m.Completed(result=b'"x"'))),
        (Failed("no", code="MAIL"), failed("no", code="MAIL")),
        (Failed(""), failed("the handler returned a failure without a reason")),
        (Nack(), ("nack", m.Nack())),
        (Nack(0), ("nack", m.Nack(delay_seconds=0))),
        (Retry("1m", "busy"), ("nack", m.Nack(delay_seconds=60, reason="busy"))),
        (Snooze(-3), ("snooze", m.Snooze(delay_seconds=0))),
        (Raised(Snooze("1h")), ("snooze", m.Snooze(delay_seconds=3600))),
        (Abandon(), ("abandon", m.Abandon())),
        (Raised(JobDrained()), ("abandon", m.Abandon())),
        (Poison(), failed("the handler marked the job as poison", code="POISON", poison=True)),
        (Poison("a\0b", code="BAD"), failed("a\ufffdb", code="BAD", poison=True)),
        (Raised(JobCancelled()), ("cancelled", m.Cancelled())),
        (Raised(JobTimeout("slow")), failed("JobTimeout: slow", code="JOB_TIMEOUT")),
        (Raised(ValueError("x")), failed("ValueError: x")),
        (Raised(SystemExit(3)), failed("SystemExit: 3")),
    ],
    ids=repr,
)  # fmt: skip
def test_each_ending_becomes_its_outcome(ending, expected):
    name, value = outcome(ending)
    if name == "failed":
        value.traceback = ""
    assert (name, value) == expected


def test_failed_outcome_has_the_traceback():
    try:
        raise KeyError("x")
    except KeyError as problem:
        _, value = outcome(Raised(problem))
    assert 'raise KeyError("x")' in value.traceback


def test_a_result_that_is_not_json_fails_permanently():
    name, value = outcome({1, 2})
    assert (name, value.code, value.poison) == ("failed", "WORKER_SERIALIZATION_ERROR", True)
    assert value.error.startswith("the handler has finished, but its result cannot be stored: ")


@pytest.mark.parametrize("ending", [Raised(Rude()), Strange(1)])
def test_exception_or_disposition_that_cannot_be_read_becomes_a_failure(ending):
    assert outcome(ending)[0] == "failed"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(Stop.CANCELLED, ("cancelled", "")), (Stop.TIMEOUT, ("failed", "JOB_TIMEOUT")), (Stop.LOST, ("failed", ""))],
)
def test_exception_after_a_stop_is_recorded_as_the_stop(stop, expected):
    name, value = outcome(Raised(OSError("closed")), stop)
    assert (name, value.code if name == "failed" else "") == expected
    assert outcome({"a": 1}, stop)[0] == "completed"
    assert outcome(Raised(Snooze(1)), stop)[0] == "snooze"


def test_outcomes_of_unstarted_tasks_have_no_duration():
    found = [cancelled(REF), expired(REF), unreadable(REF, ValueError("a\0b"))]
    assert [one.WhichOneof("outcome") for one in found] == ["cancelled", "expired", "failed"]
    assert all(one.ran_seconds < 0 and (one.task_id, one.claim) == REF for one in found)
    assert found[2].failed.error == "a\ufffdb"
    replaced = rejected(result_of(REF, 1, ran=2.0), "no JSON")
    assert (replaced.ran_seconds, replaced.failed.error) == (2.0, "the gateway rejected the result: no JSON")


GIVE_UP, NEW, RETRY = Verdict.GIVE_UP, Verdict.NEW_SESSION, Verdict.RETRY


@pytest.mark.parametrize(
    ("status", "fresh", "resuming", "opened"),
    [
        ("UNAUTHENTICATED", GIVE_UP, GIVE_UP, GIVE_UP),
        ("PERMISSION_DENIED", GIVE_UP, NEW, RETRY),
        ("NOT_FOUND", RETRY, NEW, RETRY),
        ("UNIMPLEMENTED", GIVE_UP, GIVE_UP, RETRY),
        ("INVALID_ARGUMENT", GIVE_UP, GIVE_UP, RETRY),
        ("UNAVAILABLE", RETRY, RETRY, RETRY),
        ("RESOURCE_EXHAUSTED", RETRY, RETRY, RETRY),
        ("ABORTED", RETRY, RETRY, RETRY),
        ("CANCELLED", RETRY, RETRY, RETRY),
    ],
)
def test_status_decides_between_giving_up_a_new_session_and_a_retry(status, fresh, resuming, opened):
    assert judge_stream(status, resumed=False, opened=False) is fresh
    assert judge_stream(status, resumed=True, opened=False) is resuming
    assert judge_stream(status, resumed=True, opened=True) is opened


def test_delay_doubles_over_all_addresses_and_is_reset_after_a_long_stream():
    reconnect = Reconnect(["a", "b"], random=lambda: 1.0)
    seen = [(reconnect.address, reconnect.failed(lived)) for lived in (0, 0, 0, 0, 0, 0, 0, 0, LONGEST_DELAY, 0)]
    assert [address for address, _ in seen] == ["a", "b"] * 5
    assert [delay for _, delay in seen] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 0.1, 0.2])


@given(st.floats(0, 1), st.lists(st.floats(0, 30), max_size=20))
def test_reconnect_delay_is_random_and_bounded(random, lives):
    reconnect = Reconnect(["a"], random=lambda: random)
    assert all(0 <= reconnect.failed(lived) <= random * LONGEST_DELAY for lived in lives)
    assert Reconnect(["a"], random=lambda: random).failed() == FIRST_DELAY * random


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", ["a:1"]),
        (" a:1, [::1]:9091 ,", ["a:1", "[::1]:9091"]),
        (["unix:/run/jobherd.sock", "b:2"], ["unix:/run/jobherd.sock", "b:2"]),
    ],
)
def test_addresses_are_parsed(given, found):
    assert read_addresses(given) == found


@pytest.mark.parametrize("given", ["", " , ", "a", "a:", ":1", "a:http", "a:0", "a:65536", []])
def test_invalid_addresses_are_rejected(given):
    with pytest.raises(ValueError, match="address"):
        read_addresses(given)


def make_task(extend=lambda *_: True, **fields):
    return Task(m.Task(id=5, claim=7, kind="a", **fields), extend)


def test_task_has_the_fields_that_the_gateway_sent():
    task = make_task(created_at_micros=1_500_000, timeout_seconds=9, tenant="t", attempt=2)
    assert repr(task) == "Task(id=5, kind='a', attempt=2)"
    assert (task.traceparent, task.trace_headers) == (None, {})
    traced = make_task(traceparent="trace  user=7")
    assert (traced.traceparent, traced.trace_headers) == ("trace", {"traceparent": "trace", "baggage": "user=7"})
    assert (task.created_at.timestamp(), task.timeout, task.tenant, task.token) == (1.5, 9, "t", 7)
    assert [make_task().__dict__[name] for name in ("timeout", "tenant", "webhook", "parent_id", "payload_bytes")] == [
        None
    ] * 5


def test_failed_extension_marks_the_task_as_lost_and_cancelled():
    asked = []
    task = make_task(lambda *given: asked.append(given) or len(asked) < 2)
    task.extend("1m")
    assert not task.cancelled
    task.extend(5)
    assert task.cancelled
    assert asked == [(REF, 60.0), (REF, 5.0)]
    task.stop(Stop.CANCELLED)
    assert task.stopped is Stop.LOST
    with pytest.raises(ValueError, match="more than 0"):
        task.extend(0)
