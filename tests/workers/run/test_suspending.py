"""Jobs that suspend themselves: the scheduled row and the step's record are written in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobherd.workers.ipc.current_work import Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from jobherd.workers.system import failpoints
from tests.support.points import Points
from tests.support.processes import wait_for_exit
from tests.support.seats import count_of
from tests.workers.run.test_steps import OVER, bank, records, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate
    from tests.support.seats import Bench, Child

__all__ = ["bank"]


def suspend(bank: Bench, child: Child, kind: str = "step:sleeps", **payload: object):
    """Enqueue a job, wait until it is suspended, and return its row."""
    job = bank.enqueue(kind, **payload)
    child.nudge()
    return bank.wait(job, "scheduled", "retrying", *OVER)


def wake(bank: Bench, child: Child, job: int, *, early: bool = False) -> None:
    """Run a sleeping job again: after its sleep has ended, or early."""
    if not early:
        bank.ask(
            "UPDATE jobherd.steps SET result = json_build_object('until', clock_timestamp()) WHERE job = %(job)s AND result->>'until' IS NOT NULL",
            job=job,
        )
    bank.ask("SELECT jobherd.retry(%(job)s)", job=job)
    child.nudge()


def test_sleeping_job_is_scheduled_and_its_attempt_is_not_counted(bank: Bench):
    child = start(bank)
    row = suspend(bank, child)
    assert (row["state"], row["attempts"], row["history"], row["error"]) == ("scheduled", 0, [], None)
    [(left, same)] = [
        (one["left"], one["same"])
        for one in bank.ask(
            """SELECT extract(epoch FROM s.run_at - clock_timestamp())::float8 AS left,
                      (t.result->>'until')::timestamptz <= s.run_at AS same
                 FROM jobherd.scheduled s JOIN jobherd.steps t ON t.job = s.id AND t.name = 'sleep:1'"""
        )
    ]
    assert same
    assert 3000 < left <= 3600
    wake(bank, child, row["id"])
    bank.wait_until(lambda: "sleep:2" in records(bank, row["id"]), "the second sleep")
    assert bank.wait(row["id"], "scheduled")["attempts"] == 0
    wake(bank, child, row["id"])
    row = bank.wait(row["id"], *OVER)
    assert row["result"] == [3, 1, 1], "three runs, one call of the step, the first attempt"
    assert [one["outcome"] for one in row["history"]] == ["completed"]
    assert count_of(child, "step:sleeps", "suspended") == 2
    assert child.dismiss() == EXIT_REQUESTED, "a suspension does not make a worker due for replacement"


def test_sleeping_job_that_is_run_early_sleeps_for_the_remaining_time(bank: Bench):
    child = start(bank)
    row = suspend(bank, child)
    wake(bank, child, row["id"], early=True)
    bank.wait_until(lambda: count_of(child, "step:sleeps", "suspended") == 2, "the second suspension")
    [(due, until)] = [
        (one["run_at"], one["until"])
        for one in bank.ask(
            "SELECT s.run_at, (t.result->>'until')::timestamptz AS until FROM jobherd.scheduled s JOIN jobherd.steps t ON t.name = 'sleep:1'"
        )
    ]
    assert abs((due - until).total_seconds()) < 60


def test_coroutine_handler_can_sleep(bank: Bench):
    child = start(bank)
    row = suspend(bank, child, "step:asleeps")
    assert (row["state"], list(records(bank, row["id"]))) == ("scheduled", ["night"])
    wake(bank, child, row["id"])
    assert bank.wait(row["id"], *OVER)["result"] == "awake"
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.parametrize(
    ("how", "state", "code", "says"),
    [
        ("swallowed", "failed", "SUSPENSION_SWALLOWED", "has swallowed JobSuspended"),
        ("cleaned up", "failed", "UNHANDLED_ERROR", "ValueError: no"),
        ("in a transaction", "failed", "UNHANDLED_ERROR", "cannot be inside a transaction"),
        ("made up", "failed", "UNHANDLED_ERROR", "JobSuspended: by hand"),
    ],
)
def test_suspension_that_is_not_possible_fails_the_job_with_the_reason(
    bank: Bench, how: str, state: str, code: str, says: str
):
    child = start(bank)
    row = suspend(bank, child, how=how)
    row = bank.wait(row["id"], *OVER)
    assert (row["state"], row["error_code"]) == (state, code)
    assert says in row["error"]
    assert list(records(bank, row["id"])) == ["a"], "the suspension is not recorded"
    assert child.dismiss() == EXIT_REQUESTED


def test_cancellation_while_the_handler_cleans_up_prevents_the_suspension(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("step:sleeps", how="gate")
    child.nudge()
    gate.wait_arrival("gate")
    bank.ask("SELECT jobherd.cancel(%(job)s)", job=job)
    child.interrupt(Reason.CANCEL)
    bank.wait(job, "cancelled")
    assert list(records(bank, job)) == ["a"]


def test_job_is_not_suspended_if_its_claim_is_lost_before_the_settlement(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("step:sleeps", how="gate")
    child.nudge()
    arrival = gate.wait_arrival("gate")
    bank.ask("DELETE FROM jobherd.running")
    arrival.open()
    assert child.wait() == EXIT_RECYCLE
    assert list(records(bank, job)) == ["a"]
    assert bank.job(job) is None


@pytest.mark.parametrize(("point", "kept"), [("transaction.settled", False), ("transaction.committed", True)])
def test_death_of_a_worker_in_the_commit_leaves_both_record_and_scheduled_row_or_neither(
    bank: Bench, point: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path / "points"))
    monkeypatch.setattr(failpoints, "armed", True)
    monkeypatch.setattr("jobherd.workers.run.transaction_end.reach", failpoints._armed)
    points = Points(tmp_path / "points")
    points.arm(point, "kill")
    child = start(bank)
    job = bank.enqueue("step:sleeps")
    child.nudge()
    wait_for_exit(child.pid)
    row = bank.wait_until(lambda: bank.job(job))
    assert (row["state"], list(records(bank, job))) == (("scheduled", ["a", "sleep:1"]) if kept else ("running", ["a"]))


def test_job_that_sleeps_in_its_second_attempt_shows_as_retrying(bank: Bench):
    child = start(bank)
    job = bank.enqueue("step:sleeps", how="failing")
    child.nudge()
    bank.wait_until(lambda: "sleep:1" in records(bank, job), "the sleep of the second attempt")
    row = bank.wait(job, "retrying")
    assert (row["attempts"], [one["outcome"] for one in row["history"]]) == (1, ["retry"])
