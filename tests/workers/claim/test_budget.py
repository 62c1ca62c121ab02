"""Workers that share the budget of their supervisor.

A job that does not fit waits, no worker polls for it, and a worker is woken when budget is free.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobherd import sql
from jobherd.workers.claim import claimer
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, MoreWork, Problem
from tests.support.gate import Gate
from tests.support.seats import Bench

WEIGHTY = str(Path(__file__).parents[1] / "weighty.py")
GIVEN = {"handlers": (WEIGHTY,), "budget": ("memory_mb=1000",), "claim_window": 0.05, "most_claimed": 100}


@pytest.mark.promise("B7", "B9")
@pytest.mark.parametrize(
    "check", [claimer.CHECK, 0.0], ids=["", "its outcome written before it asks what it never heard of"]
)
def test_job_over_the_budget_waits_until_a_worker_frees_budget_and_claims_it(
    bench: Bench, gate: Gate, check: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claimer, "CHECK", check)
    bench.control.notified = True
    one = bench.start(**GIVEN)
    one.wait_idle()  # Otherwise the wake could still be unread after the first job.
    first = bench.enqueue("weigh:gate", name="first")
    one.nudge()
    arrival = gate.wait_arrival("first")
    other = bench.start(**GIVEN)
    second = bench.enqueue("weigh:gate", name="second")
    third = bench.enqueue("weigh:free", name="third")
    other.nudge()
    free = gate.wait_arrival("third")
    assert bench.job(second)["state"] == "ready"
    free.open()
    bench.wait(third, "completed")
    other.wait_idle()
    claims = other.board.claims
    while one.heard or other.heard:
        (one.heard or other.heard).clear()
    bench.enqueue("weigh:free", name="fourth", options={"priority": 9})
    arrival.open()
    again = gate.wait_arrival("second")
    one.wait_report(MoreWork)  # It has freed budget and found more jobs than it can run, so another worker is woken.
    assert again.pid == one.pid
    assert other.board.claims == claims, "a worker whose job does not fit must not poll"
    other.nudge()
    gate.wait_arrival("fourth").open()
    again.open()
    bench.wait(first, "completed")
    bench.wait(second, "completed")
    assert [one.dismiss(), other.dismiss()] == [EXIT_REQUESTED, EXIT_REQUESTED]


def test_exiting_worker_wakes_another_for_its_budget_and_reports_a_kind_over_the_budget(bench: Bench):
    child = bench.start(**GIVEN)
    assert (
        "weigh:huge costs memory_mb 5000, more than this supervisor's budget of 1000" in child.wait_report(Problem).text
    )
    child.wait_idle()
    child.close_wake()
    child.wait_report(MoreWork)
    assert child.wait() == EXIT_REQUESTED


def test_budget_of_a_killed_worker_is_free_once_its_jobs_are_released(bench: Bench, gate: Gate):
    one = bench.start(**GIVEN)
    job = bench.enqueue("weigh:gate", name="job")
    one.nudge()
    arrival = gate.wait_arrival("job")
    os.kill(arrival.pid, signal.SIGKILL)
    one.wait()
    given = {"supervisor": bench.supervisor, "incarnation": one.spec.incarnation, "cleared": None, "error": ""}
    assert [row["id"] for row in bench.ask(sql.load("recover/requeue_child"), **given)] == [job]
    bench.start(**GIVEN)
    gate.wait_arrival("job").open("again")
    assert bench.wait(job, "completed")["result"] == "again"
