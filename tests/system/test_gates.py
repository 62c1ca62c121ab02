"""Queues and flow with real supervisors: concurrency limits over several of them, pauses, reserved workers."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

FLEETS = 4
OWN = """
from jobherd import handler
from tests.support.gate import at_gate

@handler("own:rare", timeout="5m", max_running=1)
def rare(label: str) -> str:
    return at_gate(label)
"""
SAMPLES = 3000


@pytest.mark.promise("C41")
def test_four_supervisors_together_never_exceed_a_concurrency_limit(stage: Stage):
    """The jobs take a millisecond; the test samples as fast as one session can read."""
    stage.run("SELECT jobherd.set_limit('media', 3), jobherd.set_limit(kind => 't:spin', max_running => 2)")
    spins = stage.run("SELECT jobherd.enqueue('t:spin', '{\"seconds\": 0.001}') FROM generate_series(1, 300)")
    jobs = [
        *stage.enqueue_many("t:noop", 600, queue="media"),
        *(row[0] for row in spins),
        *stage.enqueue_many("t:noop", 300),
    ]
    fleets = [stage.start(workers=3) for _ in range(FLEETS)]
    seen = {"media": 0, "t:spin": 0}
    with psycopg.connect(stage.dsn, autocommit=True) as watcher:
        left, until = len(jobs), time.monotonic() + 2 * LIMIT
        for sample in itertools.count():
            rows = watcher.execute(
                "SELECT count(*) FILTER (WHERE j.queue = 'media'), count(*) FILTER (WHERE j.kind = 't:spin')"
                "  FROM jobherd.running r CROSS JOIN unnest(r.jobs) AS j"
            ).fetchall()
            seen = {"media": max(seen["media"], rows[0][0]), "t:spin": max(seen["t:spin"], rows[0][1])}
            if sample % 100 == 0:
                left = watcher.execute("SELECT count(*) FROM jobherd.history").fetchone()[0] - len(jobs)
                if (not left and sample >= SAMPLES) or time.monotonic() > until:
                    break
    assert not left, f"{-left} jobs are left"
    assert seen == {"media": 3, "t:spin": 2}, "the limits are reached and never exceeded"
    assert stage.completed_twice() == []
    assert stage.census(jobs) == {"completed": len(jobs)}
    for fleet in fleets:
        assert fleet.stop() == 0


def test_concurrency_limit_is_free_again_at_once_when_a_worker_is_killed(stage: Stage, gate: Gate):
    stage.run("SELECT jobherd.set_limit('media', 1)")
    one, other = stage.run_fleet(workers=1, poll="300s"), stage.run_fleet(workers=1, poll="300s")
    first = stage.enqueue("t:gate", '{"label": "first"}', queue="media")
    second = stage.enqueue("t:gate", '{"label": "second"}', queue="media")
    arrival = gate.wait_arrival("first")
    assert stage.state(second) == "ready"
    os.kill(arrival.pid, signal.SIGKILL)
    again = gate.wait_arrival("first")
    again.open()
    gate.wait_arrival("second").open()
    stage.wait_all([first, second], "completed")
    assert one.stop() == other.stop() == 0


def test_limited_job_starts_after_another_job_crashes_or_drains_in_another_queue(stage: Stage, gate: Gate):
    stage.run("SELECT jobherd.set_limit(kind => 't:once', max_running => 1)")
    one = stage.run_fleet(workers=1, queues="one", poll="300s")
    other = stage.run_fleet(workers=1, queues="two", poll="300s")
    parked = "SELECT count(*) FROM jobherd.parked"

    first = stage.enqueue("t:once", '{"label": "first"}', queue="one")
    arrival = gate.wait_arrival("first")
    second = stage.enqueue("t:once", '{"label": "second"}', queue="two")
    stage.wait(lambda: stage.call(parked) == 1, "the second job to be parked")
    os.kill(arrival.pid, signal.SIGKILL)
    arrival = gate.wait_arrival(
        "second"
    )  # the failed job of the dead worker makes no job ready, so no claim follows from it
    assert stage.state(first) == "failed"

    third = stage.enqueue("t:once", '{"label": "third"}', queue="one")
    stage.wait(lambda: stage.call(parked) == 1, "the third job to be parked")
    other.signal(signal.SIGTERM)
    other.wait_log("draining")
    arrival.open()
    gate.wait_arrival("third").open()  # the same holds for a worker that has drained
    stage.wait_all([second, third], "completed")
    assert other.wait_exit() == 0
    assert one.stop() == 0


@pytest.mark.promise("C41")
def test_max_running_of_a_handler_limits_its_jobs(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, handlers=stage.write("own.py", OWN), poll="300s")
    jobs = [stage.enqueue("own:rare", f'{{"label": "{label}"}}') for label in ("first", "second")]
    arrival = gate.wait_arrival("first")
    stage.wait(lambda: stage.call("SELECT count(*) FROM jobherd.parked") == 1, "the second job to be parked")
    arrival.open()
    gate.wait_arrival("second").open()
    stage.wait_all(jobs, "completed")
    assert stage.run("SELECT name, max_running, limited_by FROM jobherd.gates") == [("own:rare", 1, "@handler")]
    assert fleet.stop() == 0


@pytest.mark.promise("E7")
def test_pause_releases_unstarted_jobs_and_lasts_until_it_is_resumed(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, claim_size=10, claim_window=0, poll="300s")
    with stage.connection.transaction():
        running = stage.enqueue("b:maybe", '{"label": "runs"}')
        waiting = [stage.enqueue("b:maybe") for _ in range(3)]
    arrival = gate.wait_arrival("runs")
    assert stage.states(waiting) == ["running"] * 3
    stage.run("SELECT jobherd.pause(kind => 'b:maybe', reason => 'a test')")
    stage.wait_all(waiting, "ready")
    other = stage.enqueue("t:noop")
    arrival.open()
    stage.wait_all([running, other], "completed")
    assert stage.states(waiting) == ["ready"] * 3
    stage.run("SELECT jobherd.resume(kind => 'b:maybe')")
    stage.wait_all(waiting, "completed")
    stage.run("SELECT jobherd.pause('*', resume_at => clock_timestamp() + interval '300 ms')")
    last = stage.enqueue("t:noop")
    stage.wait_state(last, "completed")
    assert stage.count("gates") == 0
    assert fleet.stop() == 0


@pytest.mark.promise("C22")
def test_queue_max_concurrency_limits_the_jobs_of_one_supervisor(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, queue_max_concurrency="media=1", poll="300s")
    media = [stage.enqueue("t:gate", f'{{"label": "{label}"}}', queue="media") for label in ("first", "second")]
    arrival = gate.wait_arrival("first")
    other = stage.enqueue("t:noop")
    stage.wait_state(other, "completed")
    assert stage.states(media) == ["running", "ready"]
    arrival.open()
    gate.wait_arrival("second").open()
    stage.wait_all(media, "completed")
    assert fleet.stop() == 0


@pytest.mark.promise("C17", "C18", "E26")
def test_reserved_workers_serve_only_their_queue(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, queues="high:1,batch*", poll="300s")
    stage.enqueue("t:gate", '{"label": "long"}', queue="batch-1")
    arrival = gate.wait_arrival("long")
    blocked = stage.enqueue("t:noop", queue="batch-2")
    strange = stage.enqueue("t:noop", queue="other")
    urgent = [stage.enqueue("t:noop", queue="high") for _ in range(3)]
    stage.wait_all(urgent, "completed")
    assert stage.states([blocked, strange]) == ["ready", "ready"]
    arrival.open()
    stage.wait_state(blocked, "completed")
    assert stage.state(strange) == "ready"
    assert fleet.stop() == 0
