"""Child jobs and the parent that waits for them, by the statements: each in its transaction, in every order."""

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
    """A suspended parent that waits for one child, and their flow."""
    job = wait(queue, "flow")
    nodes = '[{"node": "c", "kind": "c:d", "item": 0, "payloads": ["{}"], "options": {"delay": "1d"}}]'
    flow = queue.run("SELECT jobherd.start_flow('spawn a:b', %s)", nodes)[0][0]
    queue.run("UPDATE jobherd.flows SET step = 's', parent_id = %s, outlives = %s WHERE id = %s", job, outlives, flow)
    queue.run("UPDATE jobherd.waits SET flow = %s, topic = 'flow/' || %s WHERE job = %s", flow, flow, job)
    return job, flow


def end(queue, flow: int, state: str = "completed") -> None:
    queue.run("UPDATE jobherd.flows SET state = %s WHERE id = %s", state, flow)


def test_the_end_of_the_children_wakes_a_parent_that_was_looked_at_before(queue):
    job, flow = family(queue)
    assert match(queue) == (0, False)
    end(queue, flow)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_a_parent_that_waits_after_the_end_is_woken(queue):
    job, flow = family(queue)
    waits = queue.run("DELETE FROM jobherd.waits RETURNING job, name, topic, flow")[0]
    end(queue, flow)
    assert match(queue) == (0, False)
    queue.run("INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (%s, %s, %s, %s)", *waits)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_a_signal_of_that_topic_does_not_wake_a_parent_whose_children_run(queue):
    family(queue)
    queue.run("SELECT jobherd.signal(topic) FROM jobherd.waits")
    assert match(queue) == (0, False)
    assert ready(queue) == []


def test_children_that_run_again_keep_the_parent_waiting(queue):
    _, flow = family(queue)
    end(queue, flow, "failed")
    end(queue, flow, "open")
    assert match(queue) == (0, False)
    end(queue, flow)
    assert match(queue) == (1, False)


def test_a_flow_that_is_deleted_wakes_the_parent(queue):
    job, _ = family(queue)
    assert match(queue) == (0, False)
    queue.run("DELETE FROM jobherd.flows")
    queue.run("SELECT last FROM jobherd.sweep_waits(NULL, 10)")
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


@pytest.mark.parametrize("outlives", [False, True])
def test_the_children_of_a_cancelled_parent_are_stopped(queue, outlives):
    job, _ = family(queue, outlives=outlives)
    assert queue.run("SELECT jobherd.cancel(%s)", job) == [("cancelled",)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 10)") == [(job, 0)]
    assert queue.run(STOPPING) == [(None if outlives else "the parent job was canceled",)]


def test_a_cancellation_does_not_wait_for_a_locked_flow_and_the_sweep_stops_it(queue, database):
    job, _ = family(queue)
    other, _ = family(queue)
    with psycopg.connect(database) as session:
        session.execute("SELECT FROM jobherd.flows FOR UPDATE")
        assert queue.run("SELECT jobherd.cancel(%s)", job) == [("cancelled",)]
        assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 10)") == [(other, 0)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(NULL, 1)") == [(job, 1)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(%s, 1)", job) == [(other, 0)]
    assert queue.run("SELECT last, stopped FROM jobherd.sweep_children(%s, 1)", other) == [(None, 0)]


def test_flows_that_no_job_has_spawned_add_no_signal(queue):
    _, flow = family(queue)
    queue.run("UPDATE jobherd.flows SET step = NULL")
    end(queue, flow)
    assert queue.run("SELECT topic FROM jobherd.signals") == []
