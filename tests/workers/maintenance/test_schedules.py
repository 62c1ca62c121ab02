"""Tests schedules with real maintenance processes: several at once, killed at each step, and during edits."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psycopg
import pytest

from jobherd.workers.system import failpoints
from tests.support.points import Points
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench
from tests.support.ticks import EDIT, MAKE, ticks, verdict


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    """Return failpoints that the child processes of this test honor."""
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path / "points"))
    monkeypatch.setattr(failpoints, "armed", True)
    monkeypatch.setattr(failpoints, "reach", failpoints._armed)
    return Points(tmp_path / "points")


def test_jobs_of_a_handler_schedule_have_the_time_of_their_tick(bench: Bench):
    worker = bench.start(handlers=(str(Path(__file__).parents[1] / "scheduled.py"),))
    bench.start("maintenance", poll=0.2)
    bench.wait_until(lambda: ticks(bench) >= 2, "two instants")
    worker.nudge()
    [row, *_] = bench.wait_until(
        lambda: bench.ask("SELECT id, result FROM jobherd.jobs WHERE state = 'completed' ORDER BY id"), "its result"
    )
    assert row["result"] == ["clock", "clock", True, 0]
    job = bench.ask("SELECT job FROM jobherd.ticks ORDER BY at LIMIT 1")[0]["job"]
    assert row["id"] == job


def test_declaration_blocked_by_a_transaction_is_stored_after_the_transaction_ends(bench: Bench):
    bench.ask(
        "INSERT INTO jobherd.schedules (name, kind, every, declared) VALUES ('clock', 'act:nothing', 86400, '{}')"
    )
    with psycopg.connect(bench.dsn) as user:
        user.execute("UPDATE jobherd.schedules SET revision = revision + 1")
        bench.start(handlers=(str(Path(__file__).parents[1] / "scheduled.py"),))
        assert bench.ask("SELECT count(pending) AS n FROM jobherd.declarations") == [{"n": 1}]
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask("SELECT every FROM jobherd.schedules") == [{"every": 1}], "its declaration")
    bench.wait_until(lambda: ticks(bench) >= 1, "its first instant")


def test_first_declaration_that_a_worker_could_not_store_is_stored_later(bench: Bench):
    with psycopg.connect(bench.dsn) as user:
        user.execute("INSERT INTO jobherd.schedules (name, kind, every) VALUES ('clock', 'act:nothing', 86400)")
        bench.start(handlers=(str(Path(__file__).parents[1] / "scheduled.py"),))
        assert bench.ask("SELECT count(pending) AS n FROM jobherd.declarations") == [{"n": 1}]
        user.rollback()
    assert bench.ask("SELECT count(*) AS n FROM jobherd.schedules") == [{"n": 0}]
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask("SELECT every FROM jobherd.schedules") == [{"every": 1}], "its declaration")


def test_several_processes_miss_and_repeat_no_tick_despite_kills_and_edits(bench: Bench):
    chance = random.Random(1)
    bench.ask(MAKE, many=20)
    processes = [bench.start("maintenance") for _ in range(3)]
    for number in range(8):
        seen = ticks(bench)
        bench.wait_until(lambda seen=seen: ticks(bench) > seen + 30, "further instants")
        bench.ask(EDIT, n=number, name=f"s{chance.randrange(1, 21)}")
        victim = processes.pop(chance.randrange(3))
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        processes.append(bench.start("maintenance"))
    assert verdict(bench) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "point",
    [
        "find_due_schedules.done",
        "tick_schedules.before",
        "tick_schedules.sent",
        "tick_schedules.done",
        "plan_schedules.sent",
        "tend_schedules.before",
    ],
)
def test_process_that_dies_at_any_step_loses_and_repeats_no_tick(bench: Bench, point: str, points: Points):
    bench.ask(MAKE, many=3)
    token = points.arm(point, "kill")
    first = bench.fork("maintenance")
    assert points.wait_taken(token) == first.pid
    wait_for_exit(first.pid)
    bench.start("maintenance")
    seen = ticks(bench)
    bench.wait_until(lambda: ticks(bench) > seen + 10, "further instants")
    assert verdict(bench) == (0, 0, 0, 0)


def test_frozen_process_is_replaced_and_repeats_no_tick_when_it_continues(bench: Bench, points: Points):
    bench.ask(MAKE, many=3)
    held = points.hold("tick_schedules.before")
    bench.fork("maintenance")
    held.wait()
    bench.start("maintenance")
    seen = ticks(bench)
    bench.wait_until(lambda: ticks(bench) > seen + 10, "further instants")
    held.let_go()
    seen = ticks(bench)
    bench.wait_until(lambda: ticks(bench) > seen + 10, "further instants")
    assert verdict(bench) == (0, 0, 0, 0)


def test_edit_of_a_schedule_wakes_the_process_and_moves_the_next_tick(bench: Bench):
    bench.ask("INSERT INTO jobherd.schedules (name, kind, every) VALUES ('far', 'act:nothing', 86400)")
    child = bench.start("maintenance")
    bench.wait_until(lambda: bench.ask("SELECT next_at FROM jobherd.schedules")[0]["next_at"], "its plan")
    bench.ask("UPDATE jobherd.schedules SET every = 0.05, plan_from = now(), revision = revision + 1")
    child.nudge()  # as the supervisor does on "@due" from the trigger
    bench.wait_until(lambda: ticks(bench) > 3, "instants")
