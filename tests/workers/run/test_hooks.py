"""Hooks in a real child.

Their order, what they are told, and what becomes of a job whose hook misbehaves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import jobherd.workers.run.hooks
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED, Problem
from tests.support.seats import Bench, count_of, wait_for_line

HOOKED = str(Path(__file__).parents[1] / "hooked.py")


@pytest.fixture
def said(tmp_path, monkeypatch):
    """What the hooks wrote down so far, line by line."""
    file = tmp_path / "said"
    file.touch()
    monkeypatch.setenv("HOOKED", str(file))
    return lambda: file.read_text().splitlines()


@pytest.mark.promise("B8", "B10", "B13")
def test_the_hooks_of_a_child_s_whole_life_in_their_order(bench: Bench, said):
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
def test_a_failure_is_told_with_its_exception_and_then_the_end_is(bench: Bench, said):
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


def test_a_hook_s_error_that_ends_the_code_that_asks_what_it_is_ends_nothing(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:lied_to")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == "done"
    wait_for_line(child, "raised: ")
    assert child.dismiss() == EXIT_REQUESTED
    assert said().count("after ok") == 1


def test_a_hook_after_the_job_changes_nothing_of_it(bench: Bench, said):
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:spoiled")
    child.nudge()
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"]) == ("done", 1)
    wait_for_line(child, "spoils")
    assert "RuntimeError: spoiled" in child.log()
    assert child.dismiss() == EXIT_REQUESTED
    assert said().count("after ok") == 1, "the hooks behind one that raised run all the same"


def test_a_hook_that_hangs_is_interrupted_and_its_child_replaced(bench: Bench, said, monkeypatch):
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


def test_the_hooks_of_a_job_past_its_time_have_time_of_their_own(bench: Bench, said, monkeypatch):
    monkeypatch.setattr(jobherd.workers.run.hooks, "LIMIT", 60.0)
    child = bench.start(handlers=(HOOKED,))
    job = bench.enqueue("hook:slow")
    child.nudge()
    assert bench.wait(job, "retrying")["error_code"] == "JOB_TIMEOUT"
    assert child.wait() == EXIT_RECYCLE
    assert "was not disturbed" in said()
    assert sum(counts.timeouts for counts in child.board.tally.kind_counts()) == 1


def test_a_start_that_fails_is_told_and_what_was_begun_is_cleaned_up(bench: Bench, said, monkeypatch):
    monkeypatch.setenv("HOOKED_FAILS", "1")
    child = bench.fork(handlers=(HOOKED,))
    problem = child.wait_report(Problem).text
    assert "ConnectionError: the model is away" in problem
    assert "hooked.py" in problem
    assert child.wait() == 71
    assert said() == ["start 0", "cleans up"]


def test_hooks_named_in_a_setting_are_called_for_jobs_from_elsewhere(bench: Bench, said):
    child = bench.start(hooks=(HOOKED,))
    job, stranger = bench.enqueue("act:returns", value=1), bench.enqueue("hook:spoiled")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == 1
    bench.wait(stranger, "scheduled", "retrying")
    child.dismiss()
    assert said()[1:4] == ["before act:returns", "outer", "after ok"]
