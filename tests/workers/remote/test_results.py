"""Tests how outcomes are encoded in the protocol, and that the gateway decodes the same outcomes."""

from __future__ import annotations

import orjson
import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._values.outcome import EXPIRED, OK, Outcome
from jobherd.workers.gateway.actions import Job
from jobherd.workers.gateway.results import finished_of
from jobherd.workers.job.finished import CANCELLED_BEFORE, RELEASED, Finished, settlement
from jobherd.workers.remote.results import released, results_of, suspected
from jobherd.workers.remote.rows import row_of

OUTCOMES = [
    OK,
    Outcome("ok", result='{"pages":3}'),
    Outcome("retry", delay=7.5, error="no", code="UNHANDLED_ERROR", traceback="Traceback"),
    Outcome("retry", delay=0.0, error="no", code="NACK"),
    Outcome("failed", error="no", code="MAIL_REFUSED", traceback="Traceback"),
    Outcome("poison", error="never", code="POISON"),
    Outcome("snoozed", delay=60.0),
    Outcome("abandoned"),
    Outcome("cancelled", error="cancelled while it ran", code="JOB_CANCELLED"),
]


def sent(*finished):
    values = settlement(4, 9, finished, ran_on="here/1", now=1.0)
    return [result for result, _ in results_of(values)]


def recorded(result, *, attempts=1):
    return finished_of(result, Job(result.task_id, "a", attempts, 5), now=2.0)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: f"{one.label}-{one.code}")
def test_gateway_records_the_outcome_that_the_worker_has_decided(outcome):
    (result,) = sent(Finished(1, outcome, 2.5, 0.5))
    found = recorded(result)
    assert (found.job, found.ran) == (1, 2.5)
    assert (found.outcome.state, found.outcome.counted) == (outcome.state, outcome.counted)
    assert (found.outcome.code, found.outcome.error) == (outcome.code, outcome.error)
    assert (found.outcome.result, found.outcome.traceback) == (outcome.result, outcome.traceback)
    assert found.outcome.delay == pytest.approx(outcome.delay, abs=0.002)


@pytest.mark.parametrize("outcome", [RELEASED, CANCELLED_BEFORE, EXPIRED], ids=lambda one: one.label)
def test_job_that_did_not_start_counts_no_attempt(outcome):
    (result,) = sent(Finished(1, outcome))
    found = recorded(result)
    assert (found.outcome.state, found.ran, found.outcome.counted) == (outcome.state, None, False)


def test_gateway_decides_whether_a_crashed_job_is_retried():
    outcome = Outcome("retry", error="it died of SIGKILL", code="WORKER_CRASHED", traceback="stack")
    (result,) = sent(Finished(1, outcome, 2.5, 0.5, post_mortem='{"signal":9}', crashed=1))
    found = recorded(result)
    assert (found.outcome.label, found.crashed, found.post_mortem) == ("retry", 1, '{"signal":9}')
    assert (found.outcome.error, found.outcome.code) == ("it died of SIGKILL", "WORKER_CRASHED")
    assert recorded(result, attempts=5).outcome.label == "failed"


def test_timeout_that_killed_the_worker_is_not_a_crash():
    outcome = Outcome("retry", delay=30.0, error="it was ended by SIGKILL", code="JOB_TIMEOUT")
    (result,) = sent(Finished(1, outcome, 2.5, 0.5, post_mortem='{"signal":9}'))
    found = recorded(result)
    assert (found.outcome.code, found.outcome.error, found.crashed) == ("JOB_TIMEOUT", "it was ended by SIGKILL", 0)


def test_log_and_usage_are_sent_with_the_result():
    (result,) = sent(Finished(1, OK, 2.5, 0.5, usage='{"cpu":1}', log='{"output":"x"}'))
    assert (recorded(result).usage, recorded(result).log) == ('{"cpu":1}', '{"output":"x"}')


def test_task_of_a_dead_worker_is_released_or_counted_as_crashed():
    assert (recorded(released(1, 9)).outcome.label, recorded(released(1, 9)).ran) == ("abandoned", None)
    found = recorded(suspected(1, 9, "it died"))
    assert (found.outcome.label, found.crashed, found.ran, found.outcome.error) == ("retry", 1, None, "it died")


def test_task_becomes_the_row_of_a_claim():
    task = m.Task(
        id=1, claim=9, kind="a", queue="q", payload=b'{"n":1}', data=b"\0x", attempt=2, max_attempts=5, crashes=1,
        priority=-3, timeout_seconds=8.0, waited_seconds=0.5, expires_in_seconds=9.0, created_at_micros=1_500_000,
        run_at_micros=2_000_000, tenant="acme", parent_id=7,
    )  # fmt: skip
    row = row_of(task)
    assert row[:15] == (9, 1, "a", "q", '{"n":1}', 2, 5, 1, -3, 8.0, 1.5, 2.0, 9.0, 0.5, False)
    assert row.extras is not None
    assert orjson.loads(row.extras) == {
        "tenant": "acme", "webhook": None, "payload_bytes": r"\x0078", "parent_id": 7, "traceparent": None,
    }  # fmt: skip


def test_missing_fields_of_a_task_are_none():
    row = row_of(m.Task(id=1, claim=9, kind="a", payload=b"{}", max_attempts=5))
    assert (row.timeout, row.good_for, row.extras) == (None, None, None)
