"""Claims of several jobs: a long job delays no finished or unstarted job, and a death repeats no finished job."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Stage
    from tests.support.gate import Arrival, Gate

SHORT = """
from jobherd import handler
from tests.support.gate import at_gate
from jobherd.workers import worker
from jobherd.workers.claim import claimer
from jobherd.workers.claim.scan_start import ScanStart
from jobherd.workers.run.durations import Durations

Durations.expected = lambda self, kind: 0.0
ScanStart.note_claim = lambda *args, **how: None
worker.MAX_UNSETTLED = 600.0
claimer.AHEAD = 0.0


@handler("b:gated", timeout="5m")
def gated(label: str) -> str:
    return at_gate(label)
"""
"""Handlers of a worker that treats every job as short: it starts the next claim while outcomes are being written."""
HOLD = """
CREATE TABLE public.held ();
CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE public.held IN SHARE MODE; RETURN NULL; END $$;
CREATE TRIGGER hold BEFORE DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION public.hold();
"""


def teach(stage: Stage) -> None:
    """Run jobs from which every worker learns that this kind is short."""
    jobs = [stage.enqueue("b:maybe") for _ in range(200)]
    stage.wait_all(jobs, "completed")


def load(stage: Stage, *labels: str) -> list[int]:
    """Enqueue jobs so that one claim finds them all; an empty label makes a short job."""
    with stage.connection.transaction():
        return [stage.enqueue("b:maybe", f'{{"label": "{label}"}}') for label in labels]


def test_jobs_behind_a_long_job_are_released_and_outcomes_before_it_are_recorded(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, claim_size=100, poll="300s")
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


def test_jobs_behind_a_long_job_are_released_although_the_supervisor_loses_its_session(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, claim_size=100, poll="300s")
    teach(stage)
    stage.connection.execute(HOLD)
    waiting = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'jobherd:supervisor:%' AND wait_event = 'relation'"
    with psycopg.connect(stage.dsn) as holder:
        holder.execute("LOCK TABLE public.held")
        before, long, *behind = load(stage, "", "long", "", "")
        arrival = gate.wait_arrival("long")
        stage.wait(lambda: stage.connection.execute(waiting).fetchone(), "the request that releases the jobs behind it")
        stage.connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({waiting}) AS parent").fetchone()
    stage.wait_all(behind, "ready")
    stage.wait_state(before, "completed")
    assert stage.state(long) == "running"
    arrival.open()
    stage.wait_all([long, *behind], "completed")
    assert [stage.job(job)["attempts"] for job in (before, long, *behind)] == [1] * 4
    assert stage.completed_twice() == []


@pytest.mark.promise("D31", "E14")
def test_idle_worker_runs_the_jobs_behind_another_workers_long_job(stage: Stage, gate: Gate):
    stage.run_fleet(workers=2, claim_size=100, poll="300s")
    teach(stage)
    long, *behind = load(stage, "long", "", "", "")
    arrival = gate.wait_arrival("long")
    stage.wait_all(behind, "completed")
    assert stage.state(long) == "running"
    arrival.open()
    stage.wait_state(long, "completed")


def test_outcomes_of_a_dead_worker_are_recorded_and_its_finished_jobs_do_not_run_again(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, claim_size=100, claim_window="0s", poll="300s")
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


@contextmanager
def half_settled(
    stage: Stage, gate: Gate, *labels: str, claim_window: str
) -> Iterator[tuple[list[int], int, Arrival, psycopg.Connection]]:
    """Yield finished jobs whose outcomes wait for a lock, and the last job, which runs under the next claim."""
    stage.run_fleet(
        workers=1, claim_size=2, claim_window=claim_window, poll="300s", handlers=stage.write("gated.py", SHORT)
    )
    with stage.connection.transaction():
        jobs = [stage.enqueue("b:gated", f'{{"label": "{label}"}}') for label in labels]
    *before, last_of_claim, _ = labels
    for label in before:
        gate.wait_arrival(label).open()
    arrival = gate.wait_arrival(last_of_claim)
    with psycopg.connect(stage.dsn) as holder:
        stage.connection.execute(HOLD)
        holder.execute("LOCK TABLE public.held")
        arrival.open()
        yield jobs[:-1], jobs[-1], gate.wait_arrival(labels[-1]), holder


def test_worker_death_while_outcomes_are_being_written_repeats_no_finished_job(stage: Stage, gate: Gate):
    with half_settled(stage, gate, "first", "second", claim_window="1m") as ([first], second, arrival, holder):
        assert stage.states([first, second]) == ["running"] * 2
        (backend,) = stage.connection.execute(
            "SELECT backend_pid FROM jobherd.children WHERE kind = 'worker'"
        ).fetchone()
        os.kill(arrival.pid, signal.SIGKILL)
        gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        stage.wait(
            lambda: stage.connection.execute(gone, [backend]).fetchone(),
            "the end of its session and of the statement that it had sent",
        )
        holder.rollback()
        stage.wait_state(first, "completed")
        gate.wait_arrival("second").open()
        stage.wait_state(second, "completed")
    assert [(stage.job(job)["attempts"], stage.job(job)["crashes"]) for job in (first, second)] == [(1, 0), (2, 1)]
    assert stage.completed_twice() == []


def test_lost_outcome_is_written_while_a_job_of_the_next_claim_still_runs(stage: Stage, gate: Gate):
    with half_settled(stage, gate, "first", "second", claim_window="50ms") as ([first], second, arrival, holder):
        (backend,) = stage.connection.execute(
            "SELECT backend_pid FROM jobherd.children WHERE kind = 'worker'"
        ).fetchone()
        assert stage.connection.execute("SELECT pg_terminate_backend(%s, 10000)", [backend]).fetchone() == (True,)
        holder.rollback()
        stage.wait_state(first, "completed")
        assert stage.state(second) == "running", "its worker has not used its session since"
        arrival.open()
        stage.wait_state(second, "completed")
    assert [stage.job(job)["attempts"] for job in (first, second)] == [1, 1]
    assert stage.completed_twice() == []
