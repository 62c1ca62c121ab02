"""Short jobs of a claim run in a separate loop, with the same results as on the ordinary path."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

from jobherd.handlers._values.outcome import OK
from jobherd.supervisor.crash.unrecorded_outcomes import finished_of
from jobherd.workers.ipc.current_work import Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from jobherd.workers.process.state_guard import CLEAN
from jobherd.workers.run.executor import Executor
from tests.support.seats import Bench, Child, count_of

SHORTLY = str(Path(__file__).with_name("shortly.py"))
FIRST = CLEAN + 20
"""Number of jobs after which a kind counts as clean and as short."""


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch):
    """Count the jobs of a worker that run on the ordinary path. The worker is a fork of this process."""
    memory = mmap.mmap(-1, 8)
    number = memoryview(memory).cast("Q")
    execute = Executor.execute

    def counted(self, *given, **named):
        number[0] += 1
        return execute(self, *given, **named)

    monkeypatch.setattr(Executor, "execute", counted)
    # Otherwise a busy machine could make a job count as long.
    monkeypatch.setattr("jobherd.workers.short_jobs.LONG", 600.0)
    monkeypatch.setattr("jobherd.workers.short_jobs.MAX_UNSETTLED", 600.0)
    return number


def start(bench: Bench, kind: str = "short:does", **settings) -> Child:
    """Start a worker for which `kind` is clean and short, and which claims up to 500 jobs at once."""
    insert(bench, kind, [{}] * FIRST)
    child = bench.start(handlers=(SHORTLY,), most_claimed=500, claim_window=0.0, **settings)
    bench.wait_until(lambda: bench.ask("SELECT FROM jobherd.history OFFSET %(n)s - 1", n=FIRST))
    child.wait_idle()
    return child


def insert(bench: Bench, kind: str, payloads) -> list[int]:
    rows = bench.ask(
        "INSERT INTO jobherd.ready (kind, payload) SELECT %(kind)s, p::json FROM unnest(%(payloads)s::text[]) WITH ORDINALITY AS u (p, n)"
        " ORDER BY n RETURNING id",
        kind=kind,
        payloads=[json.dumps(payload) for payload in payloads],
    )
    return [row["id"] for row in rows]


def go(bench: Bench, child: Child, whats, **more) -> list[int]:
    jobs = insert(bench, "short:does", [{"what": what} | more for what in whats])
    child.nudge()
    return jobs


def test_each_short_job_has_its_own_outcome_output_and_counters(bench: Bench, ordinary):
    child = start(bench, capture=True)
    before = ordinary[0]
    whats = ["nothing", "returns", "nothing", "raises", "prints", "coroutine", "leaves", "finds", "nothing"]
    jobs = go(bench, child, whats * 3)
    rows = [bench.wait(job, "completed", "retrying") for job in jobs]
    assert ordinary[0] == before
    for what, row in zip(whats * 3, rows, strict=True):
        assert row["state"] == ("retrying" if what == "raises" else "completed"), what
        assert row["result"] == {"returns": 7, "coroutine": "later", "finds": "nothing"}.get(what), what
        assert ("ValueError: a value" in (row["error"] or "")) == (what == "raises")
    logs = {row["job"]: row["output"] for row in bench.ask("SELECT job, output FROM jobherd.logs")}
    assert logs == {job: "some words\n" for job, what in zip(jobs, whats * 3, strict=True) if what == "prints"}
    counts = next(counts for counts in child.board.tally.kind_counts() if counts.name == "short:does")
    assert count_of(child, "short:does", "ok") == FIRST + 24
    assert count_of(child, "short:does", "retry") == 3
    assert sum(counts.buckets) == child.board.jobs_started == sum(child.board.tally.waits()[0]) == FIRST + 27
    assert child.dismiss() == EXIT_REQUESTED


def test_short_jobs_have_ordered_start_times_and_one_attempt_each(bench: Bench, ordinary):
    child = start(bench)
    before = ordinary[0]
    jobs = go(bench, child, ["nothing"] * 50)
    rows = [bench.wait(job, "completed") for job in jobs]
    assert ordinary[0] == before
    assert {row["attempts"] for row in rows} == {1}
    starts = [row["started_at"] for row in rows]
    assert starts == sorted(starts)
    assert all(row["created_at"] <= row["started_at"] <= row["finished_at"] for row in rows)


@pytest.mark.parametrize("how", ["revoked", "cancelled", "dismissed", "draining"])
def test_short_job_does_not_start_after_a_revocation_cancellation_dismissal_or_drain(
    bench: Bench, ordinary, gate, how: str
):
    child = start(bench)
    jobs = insert(bench, "short:does", [{}, {}, {"what": "gate", "name": "a"}, {}, {}])
    child.nudge()
    arrival = gate.wait_arrival("a")
    now = child.board.now()
    assert now is not None
    assert (now.job, now.attempts, now.max_attempts) == (jobs[2], 1, 3)
    assert child.board.begun == jobs[2]
    finished = finished_of(child.board, now.token)
    assert [(one.job, one.outcome, one.keep) for one in finished] == [(job, OK, 7) for job in jobs[:2]]
    assert all(one.ran is not None and 0 <= one.ran and one.ended <= now.started for one in finished)
    started, claims = child.board.jobs_started, child.board.claims[0] - child.board.claims[1]
    match how:
        case "revoked":
            child.board.revoke(now.token)
        case "cancelled":
            child.interrupt(Reason.CANCEL, job=jobs[3])
        case "dismissed":
            child.board.dismiss()
            child.close_wake()
        case "draining":
            bench.control.draining = True
    arrival.open()
    for job in jobs[:3]:
        bench.wait(job, "completed")
    if how == "cancelled":
        assert bench.wait(jobs[3], "cancelled")["started_at"] is None
        bench.wait(jobs[4], "completed")
        assert child.board.jobs_started == started + 1
    elif how == "revoked":
        rows = [bench.wait(job, "completed") for job in jobs[3:]]
        assert all(row["attempts"] == 1 for row in rows)
        made, empty = child.board.claims
        assert made - empty == claims + 1, "the jobs were not released and claimed again"
    else:
        rows = [bench.wait(job, "ready") for job in jobs[3:]]
        assert all(row["attempts"] == 0 for row in rows)
        assert child.board.jobs_started == started
    bench.control.draining = False
    assert child.dismiss() == EXIT_REQUESTED


def test_job_among_short_jobs_is_interrupted_at_its_timeout(bench: Bench, ordinary):
    child = start(bench, "short:timed")
    before = ordinary[0]
    jobs = insert(bench, "short:timed", [{}] * 5 + [{"seconds": 60.0}] + [{}])
    child.nudge()
    row = bench.wait(jobs[5], "retrying")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert ordinary[0] == before
    assert child.wait() == EXIT_RECYCLE
    assert bench.wait(jobs[6], "ready")["attempts"] == 0
    assert [bench.wait(job, "completed")["attempts"] for job in jobs[:5]] == [1] * 5


@pytest.mark.parametrize("what", ["thread", "handler"])
def test_worker_detects_a_process_change_by_a_job_among_short_jobs(bench: Bench, ordinary, what: str):
    child = start(bench)
    jobs = go(bench, child, ["nothing"] * 3 + [what])
    for job in jobs:
        bench.wait(job, "completed")
    assert child.wait() == EXIT_RECYCLE
