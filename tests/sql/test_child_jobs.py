"""Child jobs and the parent job that waits for them: each statement in its transaction, in every order."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.test_signals import match, ready, wait
from tests.support.queue import Queue

STOPPING = "SELECT stopping FROM jobherd.flows"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.run("SET lock_timeout = '60s'")
        yield queue


def family(queue, *, outlives: bool = False) -> tuple[int, int]:
    """Return a suspended parent job that waits for one child job, and their flow."""
    job = wait(queue, "flow")
    nodes = '[{"node": "c", "kind": "c:d", "item": 0, "payloads": ["{}"], "options": {"delay": "1d"}}]'
    flow = queue.run("SELECT jobherd.start_flow('spawn a:b', %s)", nodes)[0][0]
    queue.run("UPDATE jobherd.flows SET step = 's', parent_id = %s, outlives = %s WHERE id = %s", job, outlives, flow)
    queue.run("UPDATE jobherd.waits SET flow = %s, topic = 'flow/' || %s WHERE job = %s", flow, flow, job)
    return job, flow


def end(queue, flow: int, state: str = "completed") -> None:
    queue.run("UPDATE jobherd.flows SET state = %s WHERE id = %s", state, flow)


def test_end_of_the_child_jobs_wakes_a_parent_job_that_was_checked_before(queue):
    job, flow = family(queue)
    assert match(queue) == (0, False)
    end(queue, flow)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_parent_job_that_starts_to_wait_after_the_end_is_woken(queue):
    job, flow = family(queue)
    waits = queue.run("DELETE FROM jobherd.waits RETURNING job, name, topic, flow")[0]
    end(queue, flow)
    assert match(queue) == (0, False)
    queue.run("INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (%s, %s, %s, %s)", *waits)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_signal_of_the_flow_topic_does_not_wake_a_parent_whose_child_jobs_run(queue):
    family(queue)
    queue.run("SELECT jobherd.signal(topic) FROM jobherd.waits")
    assert match(queue) == (0, False)
    assert ready(queue) == []


def test_child_jobs_that_run_again_keep_the_parent_job_waiting(queue):
    _, flow = family(queue)
    end(queue, flow, "failed")
    end(queue, flow, "open")
    assert match(queue) == (0, False)
    end(queue, flow)
    assert match(queue) == (1, False)


def test_deletion_of_the_flow_wakes_the_parent_job(queue):
    job, _ = family(queue)
    assert match(queue) == (0, False)
    queue.run("DELETE FROM jobherd.flows")
    queue.run("SELECT last FROM jobherd.sweep_waits(NULL, 10)")
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


@pytest.mark.parametrize("outlives", [False, True])
def test_cancellation_of_a_parent_job_stops_child_jobs_that_must_not_outlive_it(queue, outlives):
    job, _ = family(queue, outlives=outlives)
    assert queue.run("SELECT jobherd.cancel(%s)", job) == [("cancelled",)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 10)") == [(job, 0)]
    assert queue.run(STOPPING) == [(None if outlives else "the parent job was canceled",)]


def test_cancellation_does_not_wait_for_a_locked_flow_and_a_later_sweep_stops_it(queue, database):
    job, _ = family(queue)
    other, _ = family(queue)
    with psycopg.connect(database) as session:
        session.execute("SELECT FROM jobherd.flows FOR UPDATE")
        assert queue.run("SELECT jobherd.cancel(%s)", job) == [("cancelled",)]
        assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 10)") == [(other, 0)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 1)") == [(job, 1)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(%s, 1)", job) == [(other, 0)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(%s, 1)", other) == [(None, 0)]


def test_end_of_a_flow_that_no_job_spawned_adds_no_signal(queue):
    _, flow = family(queue)
    queue.run("UPDATE jobherd.flows SET step = NULL")
    end(queue, flow)
    assert queue.run("SELECT topic FROM jobherd.signals") == []
