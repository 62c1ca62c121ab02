from __future__ import annotations

import logging
import pickle
import time
from datetime import UTC, datetime

import pytest

from jobherd import Job


@pytest.mark.promise("D37")
def test_job_has_its_times_attempts_and_a_repr_without_its_payload():
    job = Job(id=7, kind="mail:receipt", created=0.5, run=86400, attempt=5, max_attempts=5, payload={"secret": 1})
    assert job.created_at == datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert job.run_at == datetime(1970, 1, 2, tzinfo=UTC)
    assert job.is_last_attempt
    assert not job.cancelled
    assert repr(job) == "<Job 7 mail:receipt attempt 5 of 5>"


def test_job_has_the_trace_headers_to_send_with_further_requests():
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    plain, traced = Job(id=7, kind="a:b"), Job(id=7, kind="a:b", trace=trace)
    assert (plain.traceparent, plain.trace_headers) == (None, {})
    assert (traced.traceparent, traced.trace_headers) == (trace, {"traceparent": trace})
    headers = {"traceparent": trace, "tracestate": "vendor=1", "baggage": "user=7"}
    traced = Job(id=7, kind="a:b", trace=" ".join(headers.values()))
    assert (traced.traceparent, traced.trace_headers) == (trace, headers)


def test_remaining_time_is_never_negative_and_infinite_without_a_deadline():
    assert Job(id=1, kind="x").remaining() == float("inf")
    assert Job(id=1, kind="x", deadline=time.monotonic() - 5).remaining() == 0
    assert 50 < Job(id=1, kind="x", deadline=time.monotonic() + 60).remaining() <= 60


@pytest.mark.parametrize(("said", "heard"), [(0.5, 0.5), (-1, 0), (2, 1), (float("nan"), 0), (float("inf"), 1), (1, 1)])
def test_progress_is_limited_to_0_to_1(said, heard):
    told = []
    Job(id=1, kind="x", on_progress=lambda *what: told.append(what)).progress(said, "note", {"n": 1})
    assert told == [(heard, "note", {"n": 1})]


def test_progress_without_a_listener_does_nothing():
    Job(id=1, kind="x").progress(0.5)


def test_cancelled_is_queried_at_each_access():
    asked = iter([False, True])
    job = Job(id=1, kind="x", on_cancelled=lambda: next(asked))
    assert [job.cancelled, job.cancelled] == [False, True]


def test_job_log_records_have_the_job_id_and_not_the_payload(caplog):
    job = Job(id=7, kind="mail:receipt", attempt=2, payload={"secret": "hunter2"})
    with caplog.at_level(logging.INFO, logger="jobherd.job"):
        job.log.info("sent %d", 3)
        job.log.info("again")
    record = caplog.records[0]
    assert (record.getMessage(), record.job, record.kind, record.attempt) == ("sent 3", 7, "mail:receipt", 2)
    assert "hunter2" not in caplog.text
    assert job.log is job.log


def test_job_cannot_be_pickled():
    with pytest.raises(TypeError, match=r"pass job\.id"):
        pickle.dumps(Job(id=1, kind="x"))
