"""The log lines about finished jobs: which outcomes get one, their text and fields, and their rate limit."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.job.row import JobRow
from jobherd.workers.run.job_log import BURST, JobLog, place_of


def row(kind: str = "mail:receipt", job: int = 7, queue: str = "default") -> JobRow:
    return JobRow(1, job, kind, queue, "null", 2, None, 0, 0, None, 0.0, 0.0, None, 0.0, False)


RETRY = Outcome("retry", delay=31.0, error="ValueError: no such order", code="UNHANDLED_ERROR")
FAILED = Outcome("failed", error="ValueError: no such order", code="UNHANDLED_ERROR")
POISON = Outcome("poison", error="payload at $.to is missing", code="PAYLOAD_INVALID")
OK = Outcome("ok")
SNOOZED = Outcome("snoozed", delay=3600.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def written(
    caplog: pytest.LogCaptureFixture, mode: str, *outcomes: Outcome, hidden: bool = False
) -> list[tuple[str, str]]:
    log = JobLog(mode, Clock())
    with caplog.at_level(logging.DEBUG, logger="jobherd.jobs"):
        for outcome in outcomes:
            log.note(row(), outcome, 5, 0.0123, hidden=hidden)
        log.write()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


FAILURES = [
    ("WARNING", "attempt failed, runs again in 31 s: ValueError: no such order"),
    ("ERROR", "job failed: ValueError: no such order"),
    ("ERROR", "job failed: payload at $.to is missing"),
]


@pytest.mark.parametrize(
    ("mode", "lines"),
    [
        ("failures", FAILURES),
        ("none", []),
        ("all", [*FAILURES, ("INFO", "job completed"), ("INFO", "job snoozed, runs again in 1 h")]),
    ],
)
def test_mode_decides_which_outcomes_get_a_log_line(
    caplog: pytest.LogCaptureFixture, mode: str, lines: list[tuple[str, str]]
):
    assert written(caplog, mode, RETRY, FAILED, POISON, OK, SNOOZED) == lines


def test_log_fields_name_the_job_and_the_source_line(caplog: pytest.LogCaptureFixture):
    trace = 'Traceback (most recent call last):\n  File "/app/mail.py", line 12, in receipt\n    f()\nValueError: no such order'
    written(caplog, "failures", Outcome("retry", delay=1.0, error="e", code="C", traceback=trace))
    fields: dict[str, Any] = vars(caplog.records[0])
    wanted = {
        "job": 7,
        "kind": "mail:receipt",
        "attempt": 2,
        "max_attempts": 5,
        "error_code": "C",
        "place": "/app/mail.py:12",
        "ran": "0.012s",
    }
    assert {name: fields[name] for name in wanted} == wanted


def test_record_of_a_table_store_is_logged_as_a_record_and_not_as_a_job(caplog: pytest.LogCaptureFixture):
    log = JobLog("failures", Clock())
    log.note(row(queue=""), FAILED, 5, 0.0, hidden=False)
    log.write()
    assert vars(caplog.records[0])["record"] == 7
    assert "job" not in vars(caplog.records[0])


def test_error_text_of_a_redacting_kind_is_not_logged(caplog: pytest.LogCaptureFixture):
    assert written(caplog, "failures", FAILED, hidden=True) == [("ERROR", "job failed: UNHANDLED_ERROR")]


def test_long_error_text_is_cut(caplog: pytest.LogCaptureFixture):
    [(_, message)] = written(caplog, "failures", Outcome("failed", error="x" * 10_000, code="C"))
    assert len(message) < 600
    assert message.endswith(" [cut]")


def test_log_lines_are_rate_limited_per_kind_and_left_out_lines_are_counted(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    log = JobLog("failures", clock)
    for job in range(BURST + 30):
        log.note(row(job=job), RETRY, 5, 0.0, hidden=False)
    log.note(row(kind="other:kind", job=1000), RETRY, 5, 0.0, hidden=False)
    log.note(row(job=1001), FAILED, 5, 0.0, hidden=False)
    log.write()
    jobs = [vars(record)["job"] for record in caplog.records]
    assert jobs == [*range(BURST), 1000, 1001], "other kinds and final failures have their own limits"
    clock.now += 1.0
    log.note(row(job=2000), RETRY, 5, 0.0, hidden=False)
    log.write()
    assert (vars(caplog.records[-1])["job"], vars(caplog.records[-1])["left_out"]) == (2000, 30)


def test_idle_worker_logs_the_number_of_left_out_lines_at_most_once_a_second(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    log = JobLog("failures", clock)

    def flood() -> None:
        for job in range(BURST + 5):
            log.note(row(job=job), RETRY, 5, 0.0, hidden=False)
        log.write()

    def summaries() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("left out")]

    flood()
    assert log.summarize() == float("inf")
    assert summaries() == ["left out 5 lines about finished jobs: too many a second"]
    flood()
    assert log.summarize() == pytest.approx(1.0)
    assert len(summaries()) == 1
    log.summarize(leaving=True)
    assert summaries()[1:] == [f"left out {BURST + 5} lines about finished jobs: too many a second"]


def test_log_filter_that_raises_does_not_stop_the_job_log():
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError(record.getMessage())

    broken = Broken()
    logger = logging.getLogger("jobherd.jobs")
    logger.addFilter(broken)
    try:
        log = JobLog("failures", Clock())
        log.note(row(), FAILED, 5, 0.0, hidden=False)
        log.write()
    finally:
        logger.removeFilter(broken)
    assert log.waiting == []


def test_logged_source_line_is_in_the_application_and_not_in_a_library():
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/app/mail.py", line 12, in receipt\n    send()\n'
        '  File "/venv/lib/python3.11/site-packages/smtp.py", line 900, in send\n    raise OSError\nOSError'
    )
    assert place_of(trace) == "/app/mail.py:12"
    assert (
        place_of(trace.replace("/app/mail.py", "/x/site-packages/a.py"))
        == "/venv/lib/python3.11/site-packages/smtp.py:900"
    )
    assert not place_of("ValueError")
