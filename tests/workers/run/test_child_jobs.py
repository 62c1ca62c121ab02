"""Jobs that spawn child jobs and wait for them: each child job is enqueued once, and the parent job occupies no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.workers.run.test_steps import OVER, bank, records, start
from tests.workers.run.test_waiting import fleet

if TYPE_CHECKING:
    from tests.support.gate import Gate
    from tests.support.seats import Bench, Child

__all__ = ["bank"]
CHILDREN = "SELECT id, state, parent_id FROM jobherd.jobs WHERE kind = 'step:child' ORDER BY id"
FLOWS = "SELECT id, name, state, step, parent_id, stopping FROM jobherd.flows ORDER BY id"


def run(bank: Bench, worker: Child, how: str = "", kind: str = "step:parent", **payload: object):
    """Enqueue a parent job and return its row when it has finished."""
    return end(bank, worker, bank.enqueue(kind, **({"how": how} if how else {}), **payload))


def end(bank: Bench, worker: Child, job: int):
    """Wake the worker whenever a job is ready, and return the row of this job when it has finished."""

    def over():
        if bank.ask("SELECT FROM jobherd.ready LIMIT 1"):
            worker.nudge()
        row = bank.job(job)
        return row if row is not None and row["state"] in OVER else None

    return bank.wait_until(over, f"the end of job {job}")


def spawned(bank: Bench, worker: Child, how: str = "", **payload: object) -> int:
    """Enqueue a parent job whose child jobs have a paused kind, and return its id when it is suspended."""
    bank.ask("SELECT jobherd.pause(kind => 'step:child')")
    job = bank.enqueue("step:parent", **({"how": how} if how else {}), **payload)
    worker.nudge()
    bank.wait(job, "scheduled")
    return job


def test_parent_job_gets_the_results_of_its_child_jobs_in_order(bank: Bench):
    worker, _ = fleet(bank)
    row = run(bank, worker)
    assert row["result"] == [["child 1", "child 2", "child 3"], 1]
    assert (row["attempts"], [one["outcome"] for one in row["history"]]) == (1, ["completed"])
    [flow] = bank.ask(FLOWS)
    assert (flow["name"], flow["state"], flow["step"], flow["parent_id"]) == (
        "spawn step:parent",
        "completed",
        "all",
        row["id"],
    )
    children = bank.ask(CHILDREN)
    assert [(one["parent_id"], one["state"]) for one in children] == [(row["id"], "completed")] * 3
    found = records(bank, row["id"])
    assert found["all"][0] == {"flow": flow["id"], "jobs": 3}
    assert [entry["result"]["cents"] for entry in found["gather:all"][0]] == [1, 2, 3]
    assert bank.ask("SELECT 1 FROM jobherd.waits") == []


def test_single_child_jobs_get_numbered_steps_and_results_of_the_handlers_type(bank: Bench):
    worker, _ = fleet(bank)
    row = run(bank, worker, "one")
    assert row["result"] == ["child 7", "child 8"]
    assert list(records(bank, row["id"])) == ["spawn:1", "gather:spawn:1", "spawn:2", "gather:spawn:2"]


def test_coroutines_can_be_child_jobs_and_parent_jobs(bank: Bench):
    worker, _ = fleet(bank)
    assert run(bank, worker, "async")["result"] == [2, 4, 6]
    assert run(bank, worker, kind="step:aparent")["result"] == [2, ["4", "Charge(id='child 3', cents=3)"]]


def test_gather_of_no_child_jobs_returns_at_once(bank: Bench):
    worker = start(bank)
    assert run(bank, worker, numbers=[])["result"] == [[], 1]


def test_retry_uses_the_child_jobs_of_the_first_attempt(bank: Bench):
    worker = start(bank)
    row = run(bank, worker, "fails after")
    assert (row["result"][1], row["attempts"]) == (3, 3)
    assert [flow["id"] for flow in bank.ask(FLOWS)] == [row["result"][0]]
    assert len(bank.ask(CHILDREN)) == 3


def test_suspended_parent_job_occupies_no_worker_and_waits_again_if_it_is_run_early(bank: Bench):
    worker, _ = fleet(bank)
    job = spawned(bank, worker)
    assert bank.ask("SELECT 1 FROM jobherd.running") == []
    [wait] = bank.ask("SELECT topic, flow FROM jobherd.waits")
    assert wait == {"topic": f"flow/{wait['flow']}", "flow": bank.ask(FLOWS)[0]["id"]}
    bank.ask("SELECT jobherd.retry(%(job)s)", job=job)
    worker.nudge()
    bank.wait(job, "scheduled")
    assert list(records(bank, job)) == ["all"], "a parent job that is run early waits again"
    bank.ask("SELECT jobherd.resume(kind => 'step:child')")
    assert end(bank, worker, job)["result"][0] == ["child 1", "child 2", "child 3"]


def test_child_jobs_that_finish_before_the_parent_job_is_suspended_wake_it(bank: Bench, gate: Gate):
    worker, _ = fleet(bank)
    other = start(bank)
    job = bank.enqueue("step:parent", how="gate")
    worker.nudge()
    arrival = gate.wait_arrival("gate")
    assert bank.ask("SELECT 1 FROM jobherd.waits") == [], (
        "the parent job has checked its child jobs and is not suspended yet"
    )
    bank.wait_until(
        lambda: other.nudge() or [one for one in bank.ask(FLOWS) if one["state"] == "completed"], "the end of the flow"
    )
    arrival.open()
    assert end(bank, worker, job)["result"] == 3


def test_failed_child_job_fails_its_parent_job_and_both_can_be_run_again(bank: Bench):
    worker, _ = fleet(bank)
    row = run(bank, worker, numbers=[1, -5, -6])
    children = [one["id"] for one in bank.ask(CHILDREN)]
    assert (row["state"], row["error_code"], row["attempts"]) == ("failed", "CHILD_JOB_FAILED", 1)
    assert f"child job {children[1]} (step:child) failed: " in row["error"]
    assert "-5 is negative" in row["error"]
    assert "2 of 3 child jobs have not completed" in row["error"]
    assert list(records(bank, row["id"])) == ["all"], "a failure is not recorded"
    bank.ask("SELECT jobherd.pause(kind => 'step:child')")
    bank.ask("UPDATE jobherd.history SET payload = '{\"number\": 9}' WHERE kind = 'step:child' AND state = 'failed'")
    flow = bank.ask(FLOWS)[0]["id"]
    bank.ask("SELECT jobherd.retry_flow(%(flow)s)", flow=flow)
    bank.ask("SELECT jobherd.retry(%(job)s)", job=row["id"])
    worker.nudge()
    bank.wait(row["id"], "scheduled")
    bank.ask("SELECT jobherd.resume(kind => 'step:child')")
    assert end(bank, worker, row["id"])["result"][0] == ["child 1", "child 9", "child 9"]


def test_gather_with_return_exceptions_records_failures_in_place_of_results(bank: Bench):
    worker, _ = fleet(bank)
    row = run(bank, worker, "exceptions", numbers=[4, -1])
    assert row["result"][0] == 4
    assert row["result"][1][0] == "failed"
    assert "-1 is negative" in row["result"][1][1]
    assert list(records(bank, row["id"])) == ["all", "gather:all"]


def test_results_over_the_total_size_limit_fail_the_parent_job(bank: Bench):
    worker, _ = fleet(bank)
    row = run(bank, worker, "large", numbers=[600_000, 600_000])
    assert (row["state"], row["error_code"]) == ("failed", "CHILD_JOB_FAILED")
    assert "more than 1,000,000: return keys of stored data instead" in row["error"]


@pytest.mark.parametrize(("how", "goes_on"), [("", False), ("leave", True)])
def test_child_jobs_are_canceled_with_their_parent_job_unless_on_parent_cancel_is_leave(
    bank: Bench, how: str, goes_on: bool
):
    worker, _ = fleet(bank)
    job = spawned(bank, worker, how)
    bank.ask("SELECT jobherd.cancel(%(job)s)", job=job)
    if goes_on:
        bank.ask("SELECT last FROM jobherd.sweep_children(NULL, 10)")
        assert bank.ask(FLOWS)[0]["stopping"] is None
        bank.ask("SELECT jobherd.resume(kind => 'step:child')")
    bank.wait_until(
        lambda: worker.nudge() or bank.ask(FLOWS)[0]["state"] == ("completed" if goes_on else "cancelled"),
        "the end of the flow",
    )
    assert {one["state"] for one in bank.ask(CHILDREN)} == {"completed" if goes_on else "cancelled"}


def test_canceling_a_parent_job_does_not_wait_for_a_lock_on_its_flow(bank: Bench):
    worker = start(bank)
    job = spawned(bank, worker)
    with psycopg.connect(bank.dsn) as session:
        session.execute("SELECT FROM jobherd.flows FOR UPDATE")
        assert bank.ask("SELECT jobherd.cancel(%(job)s) AS state", job=job) == [{"state": "cancelled"}]
    assert bank.ask(FLOWS)[0]["stopping"] is None
    assert bank.ask("SELECT last, stopped FROM jobherd.sweep_children(NULL, 10)") == [{"last": job, "stopped": 1}]
    assert bank.ask("SELECT last, stopped FROM jobherd.sweep_children(%(job)s, 10)", job=job) == [
        {"last": None, "stopped": 0}
    ]
    assert bank.ask(FLOWS)[0]["stopping"] == "the parent job was canceled"


def test_repeated_spawn_statement_enqueues_the_child_jobs_once(bank: Bench, gate: Gate):
    worker = start(bank)
    job = bank.enqueue("step:parent", how="gate")
    worker.nudge()
    arrival = gate.wait_arrival("gate")
    [claim] = bank.ask("SELECT child, token FROM jobherd.running")
    again = bank.ask(
        """SELECT jobherd.spawn_children(%(child)s, %(token)s, %(job)s, 'all', 'spawn', '[]', '{}', 3, false, 1, 1) AS record""",
        job=job,
        **claim,
    )
    assert again == [{"record": records(bank, job)["all"][0]}]
    lost = bank.ask(
        """SELECT jobherd.spawn_children(%(child)s, 999999, %(job)s, 'new', 'spawn', '[]', '{}', 3, false, 1, 1) AS record""",
        job=job,
        child=claim["child"],
    )
    assert lost == [{"record": None}]
    assert len(bank.ask(FLOWS)) == 1
    arrival.open()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("hidden", "is encrypted, so its parent job cannot get its result"),
        ("inside", "a durable step cannot be inside a transaction of the job"),
    ],
)
def test_spawn_that_is_not_possible_fails_the_job_with_the_reason(bank: Bench, how: str, error: str):
    worker = start(bank)
    job = bank.enqueue("step:parent", options={"max_attempts": 1}, how=how)
    assert error in end(bank, worker, job)["error"]
    assert bank.ask(FLOWS) == []
