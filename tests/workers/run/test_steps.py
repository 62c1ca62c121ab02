"""Durable steps of a worker's jobs: each is recorded once, and a later attempt returns the recorded result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobherd.handlers._run.job import Job
from jobherd.handlers._values import keys
from jobherd.workers.ipc.current_work import Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from jobherd.workers.system import failpoints
from tests.support.points import Points
from tests.support.processes import wait_for_exit
from tests.support.seats import ACTING, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gate import Gate
    from tests.support.seats import Child

STEPPING = str(Path(__file__).parents[1] / "stepping.py")
OVER = ("completed", "failed", "cancelled")


@pytest.fixture
def bank(bench: Bench) -> Iterator[Bench]:
    bench.ask("CREATE TABLE public.ledger (job bigint, token bigint, note text)")
    return bench


def start(bank: Bench, **settings: object) -> Child:
    child = bank.start(handlers=(ACTING, STEPPING), served=("default",), **settings)
    child.wait_idle()
    return child


def run(bank: Bench, child: Child, kind: str, *, options: dict[str, object] | None = None, **payload: object):
    job = bank.enqueue(kind, options=options, **payload)
    child.nudge()
    return bank.wait(job, *OVER)


def records(bank: Bench, job: int):
    rows = bank.ask("SELECT name, result, attempt, version FROM jobherd.steps WHERE job = %(job)s ORDER BY at", job=job)
    return {row["name"]: (row["result"], row["attempt"], row["version"]) for row in rows}


def notes(bank: Bench, job: int) -> list[str]:
    return [row["note"] for row in bank.ask("SELECT note FROM public.ledger WHERE job = %(job)s", job=job)]


def test_retry_returns_the_results_that_earlier_attempts_have_recorded(bank: Bench):
    child = start(bank)
    row = run(bank, child, "step:order", order=7, fails=2)
    created = bank.ask(
        "SELECT extract(epoch FROM created_at)::float8 AS at FROM jobherd.jobs WHERE id = %(id)s", id=row["id"]
    )
    key = Job(id=row["id"], kind="step:order", created=created[0]["at"]).step_key("charge")
    charge = {"id": f"7:{key}", "cents": 500}
    once = {"charge": 1, "item 0": 1, "item 1": 1, "item 2": 1, "nothing": 1}
    assert row["result"] == [charge, [[0, None], [1, None], [2, None]], None, once, 3, 3]
    found = records(bank, row["id"])
    assert found["charge"] == (charge, 1, 3)
    assert found["nothing"] == (None, 3, 3)
    assert list(found) == ["charge", "item 0", "item 1", "item 2", "nothing"]
    assert child.dismiss() == EXIT_REQUESTED, "steps do not make a worker due for replacement"


def test_step_transaction_and_its_record_commit_together_or_not_at_all(bank: Bench):
    child = start(bank)
    row = run(bank, child, "step:bank", fails=1)
    assert (row["result"], notes(bank, row["id"])) == ([{"attempt": 1}, True], ["a"])
    row = run(bank, child, "step:bank", how="raises")
    assert (row["result"], notes(bank, row["id"])) == ([{"attempt": 2}, False], ["a"])
    row = run(bank, child, "step:bank", how="catches")
    assert (row["result"], notes(bank, row["id"])) == ([{"attempt": 1}, False], ["a", "again"])
    row = run(bank, child, "step:bank", how="commits")
    assert (row["state"], row["error_code"], records(bank, row["id"])) == ("failed", "TRANSACTION_ENDED", {})
    row = run(bank, child, "step:bank", how="unstorable")
    assert (row["state"], row["error_code"], notes(bank, row["id"])) == ("failed", "WORKER_SERIALIZATION_ERROR", [])
    row = run(bank, child, "step:bank", how="nested")
    assert (row["state"], notes(bank, row["id"]), records(bank, row["id"])) == ("failed", [], {})
    assert "inside a transaction" in row["error"]
    assert child.dismiss() == EXIT_REQUESTED


def test_coroutine_handlers_have_async_steps(bank: Bench):
    child = start(bank)
    row = run(bank, child, "step:async")
    assert (row["result"], notes(bank, row["id"])) == (["a", {"b": 1}, 1], ["b"])
    row = run(bank, child, "step:async", how="sync", options={"max_attempts": 1})
    assert row["state"] == "failed"
    assert "await job.astep" in row["error"]


@pytest.mark.parametrize(
    ("kind", "how", "says"),
    [
        ("step:odd", "twice", "used twice"),
        ("step:odd", "unstorable", "its result cannot be recorded"),
        ("step:odd", "inside", "cannot be inside a transaction"),
        ("step:declared", None, "without transactional=True"),
        ("step:batch", None, "declare the handler without batch=N"),
    ],
)
def test_step_that_is_not_possible_fails_the_job_with_the_reason(bank: Bench, kind: str, how: str | None, says: str):
    child = start(bank)
    row = run(bank, child, kind, **{} if how is None else {"how": how})
    assert row["state"] == "failed"
    assert says in row["error"]
    assert child.dismiss() == EXIT_REQUESTED


def test_step_that_raised_can_be_called_again_in_the_same_attempt(bank: Bench):
    assert run(bank, start(bank), "step:odd", how="raises and again")["result"] == 7


def test_step_in_another_thread_is_rejected(bank: Bench):
    [says] = run(bank, start(bank), "step:odd", how="thread")["result"]
    assert "a thread that a handler has started" in says


def test_recorded_result_of_another_type_fails_the_job_with_a_suggested_step_name(bank: Bench):
    child = start(bank)
    job = bank.enqueue("step:odd", how="misfit")
    bank.ask(
        "INSERT INTO jobherd.steps (job, name, result, token, attempt, version) VALUES (%(job)s, 'old', '{\"id\": 1}', 1, 1, 2)",
        job=job,
    )
    child.nudge()
    row = bank.wait(job, *OVER)
    assert row["state"] == "failed"
    assert "(with version 2 of the handler) is not Charge" in row["error"]
    assert "'old:v2'" in row["error"]


def test_step_results_of_an_encrypted_kind_are_encrypted(bank: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBHERD_KEYS", f"one={'A' * 43}=")
    keys.ring.cache_clear()
    try:
        row = run(bank, start(bank), "step:secret")
    finally:
        keys.ring.cache_clear()
    assert row["state"] == "completed", row
    assert "4111-22" not in str(records(bank, row["id"]))
    assert list(records(bank, row["id"])["a"][0]) == ["jobherd:sealed"]


def test_lost_claim_interrupts_the_job_and_records_no_further_step(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("step:odd", how="gate")
    child.nudge()
    arrival = gate.wait_arrival("gate")
    bank.ask("DELETE FROM jobherd.running")
    arrival.open()
    assert child.wait() == EXIT_RECYCLE
    assert list(records(bank, job)) == ["a"]
    assert bank.job(job) is None, "nothing was settled under the lost claim"


def test_canceled_step_transaction_leaves_no_effect_and_no_record(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("step:bank", how="gate")
    child.nudge()
    gate.wait_arrival("gate")
    assert bank.ask("SELECT jobherd.cancel(%(job)s) AS said", job=job)[0]["said"] == "cancelling"
    child.interrupt(Reason.CANCEL)
    bank.wait(job, "cancelled")
    assert (notes(bank, job), records(bank, job)) == ([], {})


@pytest.mark.parametrize(
    ("point", "kept"), [("step.done", False), ("step.recorded", True), ("transaction.settled", False)]
)
def test_death_of_a_worker_leaves_both_effect_and_record_of_a_step_or_neither(
    bank: Bench, point: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path / "points"))
    monkeypatch.setattr(failpoints, "armed", True)
    for module in ("steps", "transaction_end"):
        monkeypatch.setattr(f"jobherd.workers.run.{module}.reach", failpoints._armed)
    points = Points(tmp_path / "points")
    points.arm(point, "kill")
    child = start(bank)
    job = bank.enqueue("step:bank")
    child.nudge()
    wait_for_exit(child.pid)
    assert (notes(bank, job), list(records(bank, job))) == ((["a"], ["reserve"]) if kept else ([], []))


def test_steps_are_deleted_with_their_job_and_when_a_completed_job_runs_again(bank: Bench):
    child = start(bank)
    deleted, purged, again = (run(bank, child, "step:bank")["id"] for _ in range(3))
    failed = run(bank, child, "step:odd", how="misfit")["id"]
    child.dismiss()
    bank.ask(
        "INSERT INTO jobherd.steps (job, name, token, attempt, version) VALUES (%(a)s, 'a', 1, 1, 1), (%(b)s, 'a', 1, 1, 1)",
        a=failed,
        b=2**40,
    )
    bank.ask("SELECT jobherd.delete(%(job)s)", job=deleted)
    bank.ask("DELETE FROM jobherd.history WHERE id = %(job)s", job=purged)
    assert [row["job"] for row in bank.ask("SELECT DISTINCT job FROM jobherd.steps ORDER BY job")] == [
        again,
        failed,
        2**40,
    ]
    bank.ask("SELECT jobherd.retry(%(a)s), jobherd.retry(%(b)s)", a=again, b=failed)
    left = "SELECT DISTINCT job FROM jobherd.steps ORDER BY job"
    assert [row["job"] for row in bank.ask(left)] == [failed, 2**40], (
        "a completed job starts without steps, a failed one keeps them"
    )
    bank.start("maintenance")
    bank.wait_until(lambda: len(bank.ask(left)) == 1, "the end of steps whose job does not exist")
    assert bank.ask(left)[0]["job"] == failed
