"""A job is part of the transaction that enqueues it, and its commit wakes a worker."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.system.test_wake import Ears, wait_asleep

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

NEVER_POLL = {"poll": "300s"}
"""The poll is so far away that only a wake can have started a job."""


@pytest.mark.promise("A8", "A9", "A10", "A51", "E19", "E24")
def test_commit_wakes_an_idle_worker_and_rollback_leaves_no_job_and_wakes_none(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    with closing(Ears(stage.dsn)) as ears, psycopg.connect(stage.dsn) as producer:
        rolled_back = producer.execute("""SELECT jobherd.enqueue('t:gate', '{"label": "never"}')""").fetchone()[0]
        producer.rollback()
        kept = producer.execute("""SELECT jobherd.enqueue('t:gate', '{"label": "kept"}')""").fetchone()[0]
        assert stage.state(kept) is None, "the job is invisible before the commit"
        producer.commit()
        gate.wait_arrival("kept").open("done")
        stage.wait_state(kept, "completed")
        assert ears.heard() == ["default"]
    assert stage.state(rolled_back) is None
    assert stage.call("SELECT count(*) FROM t_trans WHERE job = %s", rolled_back) == 0
    assert stage.call("SELECT count(*) FROM jobherd.jobs") == 1
    assert fleet.stop() == 0


@pytest.mark.promise("B15", "C4", "C18", "D15")
def test_jobs_of_one_transaction_wake_several_workers_that_claim_one_job_each(stage: Stage, gate: Gate):
    stage.run_fleet(
        workers=3, claim_size=1, **NEVER_POLL
    )  # with a larger claim, a worker whose job takes 40 ms releases the others, and they are claimed again
    jobs = [
        row[0]
        for row in stage.run(
            """SELECT jobherd.enqueue('t:gate', jsonb_build_object('label', n::text)) FROM generate_series(1, 7) AS n"""
        )
    ]
    first = [gate.wait_arrival() for _ in range(3)]
    assert len({arrival.pid for arrival in first}) == 3, "three workers run at the same time"
    assert stage.call("SELECT max(cardinality(jobs)) FROM jobherd.running") == 1
    for arrival in first:
        arrival.open()
    for _ in range(4):
        gate.wait_arrival().open()
    stage.wait_all(jobs, "completed")
    assert all(stage.runs(job) == 1 for job in jobs)


def test_job_enqueued_while_all_workers_are_busy_runs_on_the_first_idle_one(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, **NEVER_POLL)
    first = stage.enqueue("t:gate", '{"label": "first"}')
    arrival = gate.wait_arrival("first")
    second = stage.enqueue("t:gate", '{"label": "second"}')
    arrival.open()
    gate.wait_arrival("second").open()
    stage.wait_all([first, second], "completed")


def test_scheduled_job_starts_when_it_is_due_without_a_poll(stage: Stage):
    stage.run_fleet(workers=1, **NEVER_POLL)
    job = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": 0.3}')""")
    stage.wait_state(job, "completed")
    assert stage.moves(job)[:2] == [("scheduled", "scheduled"), ("ready", "ready")]
