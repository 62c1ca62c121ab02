"""Children that share the budget of their host.

Who does not fit waits, without asking again and again, and is called when there is room.
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
def test_a_job_waits_for_room_and_the_worker_that_gives_room_calls_the_next(
    bench: Bench, gate: Gate, check: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claimer, "CHECK", check)
    bench.control.notified = True
    one = bench.start(**GIVEN)
    one.wait_idle()  # or the nudge would still be unread when it has run the first
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
    one.wait_report(MoreWork)  # it has given room back and found more than it can take: a sibling is called
    assert again.pid == one.pid
    assert other.board.claims == claims, "who does not fit does not ask again by itself"
    other.nudge()
    gate.wait_arrival("fourth").open()
    again.open()
    bench.wait(first, "completed")
    bench.wait(second, "completed")
    assert [one.dismiss(), other.dismiss()] == [EXIT_REQUESTED, EXIT_REQUESTED]


def test_who_leaves_calls_another_for_the_room_it_leaves_and_a_kind_too_large_is_named(bench: Bench):
    child = bench.start(**GIVEN)
    assert (
        "weigh:huge costs memory_mb 5000, more than this supervisor's budget of 1000" in child.wait_report(Problem).text
    )
    child.wait_idle()
    child.close_wake()
    child.wait_report(MoreWork)
    assert child.wait() == EXIT_REQUESTED


def test_a_killed_child_gives_its_room_back_with_its_jobs(bench: Bench, gate: Gate):
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
