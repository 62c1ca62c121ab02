"""Batches: a long job keeps neither the finished nor the waiting ones of its claim, and a death repeats nothing that was through."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


def teach(stage: Stage) -> None:
    """Let every worker learn that jobs of this kind are short."""
    jobs = [stage.enqueue("b:maybe") for _ in range(200)]
    stage.wait_all(jobs, "completed")


def load(stage: Stage, *labels: str) -> list[int]:
    """Put jobs into the queue so that one claim finds them all; an empty label is a short job."""
    with stage.connection.transaction():
        return [stage.enqueue("b:maybe", f'{{"label": "{label}"}}') for label in labels]


def test_what_stands_behind_a_long_job_is_given_back_and_what_stood_before_it_is_written(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, batch=100, poll="300s")
    teach(stage)
    before, long, *behind = load(stage, "", "long", "", "")
    arrival = gate.wait_arrival("long")
    stage.wait_state(before, "completed")
    stage.wait_all(behind, "ready")
    assert [stage.job(job)["attempts"] for job in behind] == [0, 0]
    assert stage.state(long) == "running"
    arrival.open("at last")
    assert stage.wait_state(long, "completed")["result"] == "at last"
    stage.wait_all(behind, "completed")
    assert [stage.job(job)["attempts"] for job in (before, long, *behind)] == [1] * 4
    assert stage.completed_twice() == []


@pytest.mark.promise("D31", "E14")
def test_an_idle_sibling_runs_what_stands_behind_a_long_job(stage: Stage, gate: Gate):
    stage.run_fleet(workers=2, batch=100, poll="300s")
    teach(stage)
    long, *behind = load(stage, "long", "", "", "")
    arrival = gate.wait_arrival("long")
    stage.wait_all(behind, "completed")
    assert stage.state(long) == "running"
    arrival.open()
    stage.wait_state(long, "completed")


def test_what_a_dead_child_had_finished_of_its_batch_is_written_and_not_run_again(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, batch=100, hold="0s", poll="300s")
    teach(stage)
    first, second, deadly, *behind = load(stage, "", "", "deadly", "", "")
    arrival = gate.wait_arrival("deadly")
    assert stage.states([first, second]) == ["running"] * 2, "finished, and not written yet"
    os.kill(arrival.pid, signal.SIGKILL)
    stage.wait_all([first, second], "completed")
    gate.wait_arrival("deadly").open()
    stage.wait_all([deadly, *behind], "completed")
    assert [stage.runs(job) for job in (first, second)] == [1, 1], "claimed once"
    assert [stage.job(job)["attempts"] for job in (first, second, deadly, *behind)] == [1, 1, 2, 1, 1]
    assert [stage.job(job)["crashes"] for job in (first, second, deadly, *behind)] == [0, 0, 1, 0, 0]
    assert stage.completed_twice() == []
