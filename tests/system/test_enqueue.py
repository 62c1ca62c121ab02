"""A job is part of the transaction that enqueues it, and its commit wakes a child."""

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
"""The backstop is so far away that only a wake-up can have done it."""


@pytest.mark.promise("A8", "A9", "A10", "A51", "E19", "E24")
def test_a_commit_wakes_an_idle_child_and_a_rollback_leaves_nothing_and_wakes_nobody(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    with closing(Ears(stage.dsn)) as ears, psycopg.connect(stage.dsn) as producer:
        rolled_back = producer.execute("""SELECT jobherd.enqueue('t:gate', '{"label": "never"}')""").fetchone()[0]
        producer.rollback()
        kept = producer.execute("""SELECT jobherd.enqueue('t:gate', '{"label": "kept"}')""").fetchone()[0]
        assert stage.state(kept) is None, "others must not see it before the commit"
        producer.commit()
        gate.wait_arrival("kept").open("done")
        stage.wait_state(kept, "completed")
        assert ears.heard() == ["default"]
    assert stage.state(rolled_back) is None
    assert stage.call("SELECT count(*) FROM t_trans WHERE job = %s", rolled_back) == 0
    assert stage.call("SELECT count(*) FROM jobherd.jobs") == 1
    assert fleet.stop() == 0


@pytest.mark.promise("B15", "C4", "C18", "D15")
def test_many_jobs_of_one_transaction_wake_several_children_one_claim_at_a_time(stage: Stage, gate: Gate):
    stage.run_fleet(
        workers=3, claim_size=1, **NEVER_POLL
    )  # else one that was not opened for 40 ms gives back what it holds, and that is claimed again
    jobs = [
        row[0]
        for row in stage.run(
            """SELECT jobherd.enqueue('t:gate', jsonb_build_object('label', n::text)) FROM generate_series(1, 7) AS n"""
        )
    ]
    first = [gate.wait_arrival() for _ in range(3)]
    assert len({arrival.pid for arrival in first}) == 3, "three children run at the same time"
    assert stage.call("SELECT max(cardinality(jobs)) FROM jobherd.running") == 1
    for arrival in first:
        arrival.open()
    for _ in range(4):
        gate.wait_arrival().open()
    stage.wait_all(jobs, "completed")
    assert all(stage.runs(job) == 1 for job in jobs)


def test_a_job_that_comes_while_all_are_busy_is_taken_by_the_first_who_is_free(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, **NEVER_POLL)
    first = stage.enqueue("t:gate", '{"label": "first"}')
    arrival = gate.wait_arrival("first")
    second = stage.enqueue("t:gate", '{"label": "second"}')
    arrival.open()
    gate.wait_arrival("second").open()
    stage.wait_all([first, second], "completed")


def test_a_scheduled_job_starts_at_its_time_without_a_poll(stage: Stage):
    stage.run_fleet(workers=1, **NEVER_POLL)
    job = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": 0.3}')""")
    stage.wait_state(job, "completed")
    assert stage.moves(job)[:2] == [("scheduled", "scheduled"), ("ready", "ready")]
