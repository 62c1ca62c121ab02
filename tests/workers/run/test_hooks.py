"""Hooks in a real worker: their order, their arguments, and the outcome of a job whose hook misbehaves."""

from __future__ import annotations

from pathlib import Path

import pytest

import jobherd.workers.run.hooks
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED, Problem
from tests.support.seats import Bench, count_of, wait_for_line

HOOKED = str(Path(__file__).parents[1] / "hooked.py")


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Return a function that returns the lines that the hooks have written so far."""
    file = tmp_path / "said"
    file.touch()
    monkeypatch.setenv("HOOKED", str(file))
    return lambda: file.read_text().splitlines()


@pytest.mark.promise("B8", "B10", "B13")
def test_hooks_run_in_order_from_start_to_exit_of_a_worker(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:returns", value="x")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == ["x"]
    assert child.dismiss() == EXIT_REQUESTED
    assert said() == [
        "start 0",
        "before hook:returns",
        "outer",
        "inner {'value': 'x'}",
        "handler ['model', 'second'] loaded",
        "inner is back with x",
        "after ok",
        "exit loaded",
        "cleans up",
    ]


@pytest.mark.promise("B13")
def test_on_failure_hook_gets_the_exception_before_the_after_job_hook_runs(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    jobs = [bench.enqueue("hook:raises", what="x"), bench.enqueue("hook:raises", nothing=1), bench.enqueue("hook:busy")]
    child.nudge()
    assert [bench.wait(job, "retrying", "failed")["error_code"] for job in jobs] == [
        "UNHANDLED_ERROR",
        "PAYLOAD_INVALID",
        "NACK",
    ]
    child.dismiss()
    assert [line for line in said() if line.startswith(("failure", "after", "never"))] == [
        "failure retry ValueError",
        "after retry",
        "failure poison BindingError",
        "after poison",
        "failure retry Nack",
        "after retry",
    ]


def test_hook_exception_whose_class_cannot_be_read_does_not_end_the_worker(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:lied_to")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == "done"
    wait_for_line(child, "raised: ")
    assert child.dismiss() == EXIT_REQUESTED
    assert said().count("after ok") == 1


def test_exception_in_an_after_job_hook_does_not_change_the_outcome(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:spoiled")
    child.nudge()
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"]) == ("done", 1)
    wait_for_line(child, "spoils")
    assert "RuntimeError: spoiled" in child.log()
    assert child.dismiss() == EXIT_REQUESTED
    assert said().count("after ok") == 1, "hooks after one that raised still run"


def test_hanging_hook_is_interrupted_and_its_worker_replaced(bench: Bench, said, monkeypatch):
    monkeypatch.setattr(jobherd.workers.run.hooks, "LIMIT", 2.0)
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:hangs")
    child.nudge()
    row = bench.wait(job, "completed")
    assert (row["result"], row["error"]) == ("done", None)
    assert child.wait() == EXIT_RECYCLE
    assert "did not end within" in child.log()
    assert count_of(child, "hook:hangs", "ok") == 1
    assert said()[-2:] == ["exit loaded", "cleans up"]


def test_hooks_of_a_timed_out_job_have_their_own_time_limit(bench: Bench, said, monkeypatch):
    monkeypatch.setattr(jobherd.workers.run.hooks, "LIMIT", 60.0)
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:slow")
    child.nudge()
    assert bench.wait(job, "retrying")["error_code"] == "JOB_TIMEOUT"
    assert child.wait() == EXIT_RECYCLE
    assert "was not disturbed" in said()
    assert sum(counts.timeouts for counts in child.board.tally.kind_counts()) == 1


def test_failing_start_hook_is_reported_and_earlier_start_hooks_clean_up(bench: Bench, said, monkeypatch):
    monkeypatch.setenv("HOOKED_FAILS", "1")
    child = bench.fork(handlers=(HOOKED,))
    problem = child.wait_report(Problem).text
    assert "ConnectionError: the model is away" in problem
    assert "hooked.py" in problem
    assert child.wait() == 71
    assert said() == ["start 0", "cleans up"]


def test_hooks_named_in_a_setting_run_for_jobs_of_other_modules(bench: Bench, said):
    child = bench.start(hooks=(HOOKED,))
    job, stranger = bench.enqueue("act:returns", value=1), bench.enqueue("hook:spoiled")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == 1
    bench.wait(stranger, "scheduled", "retrying")
    child.dismiss()
    assert said()[1:4] == ["before act:returns", "outer", "after ok"]
