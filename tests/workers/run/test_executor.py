"""Every disposition end to end, and handlers whose outcome is hard to record."""

from __future__ import annotations

import base64
import json
import time

import pytest

from jobherd import Failed, KeyMissingError
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._values.keys import ring
from jobherd.handlers._values.outcome import KEY_MISSING, Raised
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from jobherd.workers.job.row import JobRow
from jobherd.workers.run.finish import encrypt
from tests.support.seats import Bench, count_of

ALL = ("completed", "failed", "cancelled", "expired", "scheduled", "retrying", "ready")


def run(bench: Bench, kind: str, *states: str, options: dict[str, object] | None = None, **payload: object):
    child = bench.start()
    child.wait_idle()
    job = bench.enqueue(kind, options=options, **payload)
    child.nudge()
    return child, bench.wait(job, *states)


@pytest.mark.parametrize("thrown", [False, True])
@pytest.mark.parametrize(
    ("what", "state", "attempts", "label", "code"),
    [
        ("completed", "completed", 1, "ok", None),
        ("failed", "retrying", 1, "retry", "NO"),
        ("nack", "retrying", 1, "retry", "NACK"),
        ("retry", "retrying", 1, "retry", "NACK"),
        ("snooze", "scheduled", 0, "snoozed", None),
        ("poison", "failed", 1, "poison", "POISON"),
    ],
)
@pytest.mark.promise("A26", "D18", "D21")
def test_disposition_decides_state_attempts_and_error_code_of_the_job(
    bench: Bench, what: str, thrown: bool, state: str, attempts: int, label: str, code: str
):
    child, row = run(bench, "act:says", state, what=what, thrown=thrown)
    assert (row["attempts"], row["error_code"]) == (attempts, code)
    assert child.dismiss() == EXIT_REQUESTED
    assert count_of(child, "act:says", label) == 1


@pytest.mark.parametrize(("what", "least", "most"), [("nack", 295, 300), ("retry", 55, 60), ("snooze", 3590, 3600)])
def test_job_is_scheduled_with_the_delay_of_its_disposition(bench: Bench, what: str, least: float, most: float):
    _, row = run(bench, "act:says", "retrying", "scheduled", what=what)
    left = bench.ask("SELECT extract(epoch FROM run_at - clock_timestamp())::float AS s FROM jobherd.scheduled")[0]["s"]
    assert least < left <= most


def test_attempt_of_an_abandoned_job_is_not_counted(bench: Bench):
    child = bench.start(served=("default",))
    child.wait_idle()
    job = bench.enqueue("act:says", what="abandon")
    bench.ask("SELECT jobherd.pause('default')")
    bench.ask("SELECT jobherd.resume('default')")
    child.nudge()
    history = bench.wait_until(lambda: bench.ask("SELECT * FROM jobherd.attempts WHERE job = %(id)s", id=job))
    assert history[0]["outcome"] == "abandoned"
    child.dismiss()
    assert bench.job(job)["attempts"] == 0


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("value", "ValueError: a value"),
        ("exit", "SystemExit: 0"),
        ("keyboard", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("base", "BaseException: base"),
        ("group", "ExceptionGroup: some (2 sub-exceptions)"),
        ("memory", "MemoryError"),
        ("recursion", "RecursionError"),
        ("rude", "__str__ raised RuntimeError"),
        ("nul", "a�b�c"),
        ("huge", "[cut]"),
        ("deep", "ValueError: 99999"),
    ],
)
@pytest.mark.promise("A22", "A28", "C6", "C28", "C35")
def test_any_exception_fails_the_attempt_and_the_worker_runs_the_next_job(bench: Bench, what: str, says: str):
    child, row = run(bench, "act:raises", "retrying", what=what)
    assert says in row["error"]
    assert len(row["error"].encode()) <= 10_000
    assert row["error_code"] == "UNHANDLED_ERROR"
    attempt = row["history"][0]
    assert attempt["outcome"] == "retry"
    assert attempt["traceback"]
    job = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(job, "completed")
    assert child.dismiss() == EXIT_REQUESTED


NO_TEXT = "<its text cannot be shown: __str__ raised "


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("endless", f"acting.Endless: {NO_TEXT}"),
        ("endless key", f"KeyError: {NO_TEXT}"),
        ("endless note", "ValueError: a value"),
        ("endless result", "could not be interpreted: jobherd.JobTimeout: ran longer than 0.5 s"),
    ],
)
def test_worker_stops_reading_an_endless_exception_or_result_and_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str, says: str
):
    monkeypatch.setattr("jobherd.workers.run.judge.JUDGING", 0.5)  # The worker is a fork of this process.
    child, row = run(bench, "act:raises", "retrying", what=what)
    assert row["error_code"] == "UNHANDLED_ERROR"
    assert says in row["error"]
    assert child.wait() == EXIT_RECYCLE
    after = bench.start()
    job = bench.enqueue("act:nothing")
    after.nudge()
    bench.wait(job, "completed")
    assert after.dismiss() == EXIT_REQUESTED


@pytest.mark.promise("A31", "D20")
def test_job_fails_if_its_last_attempt_raises(bench: Bench):
    _, row = run(bench, "act:raises", "failed", options={"max_attempts": 1}, what="value")
    assert (row["attempts"], row["error_code"]) == (1, "UNHANDLED_ERROR")
    assert "raise ValueError" in row["history"][-1]["traceback"]


@pytest.mark.parametrize("kind", ["act:unstorable", "act:large"])
@pytest.mark.promise("C36")
def test_result_that_cannot_be_stored_fails_the_job_after_one_attempt(bench: Bench, kind: str):
    _, row = run(bench, kind, *ALL[:1], "failed")
    assert (row["state"], row["error_code"], row["attempts"]) == ("failed", "WORKER_SERIALIZATION_ERROR", 1)


@pytest.mark.parametrize(
    "payload",
    [
        "[" * 5000 + "]" * 5000,
        '{"value": ' + "9" * 5000 + "}",
        '{"value": 1e131071}',
        '{"value": "\\ud800"}',
        "[1, 2]",
        "17",
        "null",
        '{"wrong": 1}',
    ],
    ids=["deep", "digits", "exponent", "surrogate", "list", "number", "null", "unknown key"],
)
@pytest.mark.promise("A26", "C15")
def test_unreadable_payload_from_raw_sql_fails_its_job_and_no_other(bench: Bench, payload: str):
    job, neighbour = bench.insert("act:returns", payload), bench.enqueue("act:returns", value=1)
    child = bench.start(most_claimed=10)
    row = bench.wait(job, "failed")
    assert (row["error_code"], row["attempts"]) == ("PAYLOAD_INVALID", 1)
    bench.wait(neighbour, "completed")
    assert child.dismiss() == EXIT_REQUESTED


def test_payload_with_a_nul_reaches_the_handler_and_a_result_with_a_nul_fails_the_job(bench: Bench):
    job = bench.insert("act:returns", '{"value": "a\\u0000b"}')
    child = bench.start()
    row = bench.wait(job, "failed")
    assert row["error_code"] == "WORKER_SERIALIZATION_ERROR"
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.promise("C37")
def test_job_of_an_unknown_kind_is_scheduled_again_and_its_attempt_is_not_counted(bench: Bench):
    child, row = run(bench, "no:such", "scheduled")
    assert (row["attempts"], row["error_code"]) == (0, "WORKER_RESOLUTION_ERROR")
    assert "no:such" in row["error"]
    assert bench.ask("SELECT 1 FROM jobherd.attempts") == []


@pytest.mark.promise("C37")
def test_job_of_an_unknown_kind_fails_after_a_day(bench: Bench):
    job = bench.enqueue("no:such")
    bench.ask("UPDATE jobherd.ready SET created_at = now() - interval '25 hours'")
    bench.start()
    assert bench.wait(job, "failed")["error_code"] == "WORKER_RESOLUTION_ERROR"


@pytest.mark.promise("C13")
def test_job_that_expires_between_its_claim_and_its_start_does_not_run(bench: Bench, gate):
    child = bench.start(most_claimed=2)
    child.wait_idle()
    with bench.connection.transaction():
        first = bench.enqueue("act:gated", name="a")
        job = bench.enqueue("act:gated", name="b")
        bench.ask("UPDATE jobherd.ready SET expires_at = clock_timestamp() + interval '3 s' WHERE id = %(id)s", id=job)
    child.nudge()
    arrival = gate.wait_arrival("a")
    # The worker has received the answer to its claim, and counts from then on. At most 3 s are left.
    bench.ask("SELECT pg_sleep(3.1)")
    arrival.open()
    row = bench.wait(job, "expired")
    assert (row["error_code"], row["started_at"]) == ("JOB_EXPIRED", None)
    bench.wait(first, "completed")
    child.dismiss()
    assert count_of(child, "act:gated", "expired") == 1


def test_resource_usage_of_a_long_attempt_is_recorded(bench: Bench):
    _, row = run(bench, "act:burns", "completed", seconds=0.1)
    usage = row["history"][-1]["usage"]
    assert 0.09 < usage["cpu_user"] + usage["cpu_system"] < 1
    assert usage["max_rss"] > 1_000_000


def test_cpu_time_of_an_idle_worker_is_not_charged_to_the_next_job(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def burn(*_: object) -> bool:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return False

    monkeypatch.setattr(Claimer, "_requeue_unacknowledged", burn)  # The worker calls it before each sleep.
    child = bench.start()
    child.wait_idle()
    child.nudge()
    child.wait_heard()
    child.wait_idle()
    job = bench.enqueue("act:burns", seconds=0.05)
    child.nudge()
    usage = bench.wait(job, "completed")["history"][-1]["usage"]
    assert usage["cpu_user"] + usage["cpu_system"] < 0.2


def test_resource_usage_of_a_short_attempt_is_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    # This also applies to the worker, a fork of this process. A busy machine could make the attempt long.
    monkeypatch.setattr("jobherd.workers.run.executor.LONG", 600.0)
    _, row = run(bench, "act:nothing", "completed")
    assert "usage" not in row["history"][-1]


def test_recorded_progress_is_json_that_postgresql_accepts(bench: Bench):
    _, row = run(bench, "act:progress", "completed")
    assert row["progress"] == {"fraction": 0.0}


def test_progress_of_one_job_is_not_shown_for_the_next(bench: Bench, gate):
    child = bench.start()
    first, then = bench.enqueue("act:gated_job", name="a"), bench.enqueue("act:gated", name="b")
    child.nudge()
    arrival = gate.wait_arrival("a")
    assert json.loads(child.board.progress()) == {"fraction": 0.5, "note": "a", "data": {"half": True}}
    arrival.open()
    arrival = gate.wait_arrival("b")
    assert child.board.progress() == b""
    arrival.open()
    assert bench.wait(first, "completed")["progress"]["note"] == "a"
    assert bench.wait(then, "completed")["progress"] is None


def test_log_lines_of_a_handler_name_the_job_and_leave_out_its_payload(bench: Bench):
    child, row = run(bench, "act:logs", "completed", text="a\nforged line")
    line = next(line for line in child.log().splitlines() if "here:" in line)
    assert f"job={row['id']}" in line
    assert "kind=act:logs" in line
    assert "colour=red" in line
    assert "secret" not in child.log()
    assert "\\nforged" in line


def test_failure_with_the_error_code_of_a_missing_key_is_still_encrypted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBHERD_KEYS", "2026=" + base64.b64encode(bytes(32)).decode())
    ring.cache_clear()
    row = JobRow(1, 7, "card:charge", "default", "{}", 1, None, 0, 0, None, 0.0, 0.0, None, 0.0, True)
    outcome, log = encrypt(outcome_of(Raised(Failed("4111 1111", code=KEY_MISSING))), '{"output": "4111 1111"}', row)
    ring.cache_clear()
    assert outcome.code == KEY_MISSING
    assert "4111 11" not in f"{outcome}{log}"
    assert log is not None
    missing, _ = encrypt(unreadable(KeyMissingError("there is no key")), None, row)
    assert missing.error == "there is no key", "this text contains nothing of the job"
