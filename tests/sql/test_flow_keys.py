"""Flows with a unique key: one is open at a time, and a second start returns its id."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from tests.sql.test_after import resolve
from tests.sql.test_flows import places, run, start, state
from tests.support.queue import Queue

ONE = {"node": "one"}
START = 'SELECT jobherd.start_flow(\'test\', \'[{"node": "one", "kind": "a:one"}]\', \'{"unique_key": "monday"}\')'


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def test_a_second_start_returns_the_open_flow(queue):
    flow = start(queue, ONE, unique_key="monday", version=3, policy="continue", deadline="1h")
    assert start(queue, ONE, unique_key="monday") == flow
    assert start(queue, ONE, unique_key="tuesday") != flow
    assert start(queue, ONE, unique_key="monday", tenant="us") != flow
    assert queue.run("SELECT jobherd.start_flow('other', '[]', '{\"unique_key\": \"monday\"}')") != [(flow,)]
    assert queue.count("ready") == 3
    assert queue.run("SELECT version, policy, pending, deadline > now() FROM jobherd.flows WHERE id = %s", flow) == [
        (3, "continue", 1, True)
    ]
    run(queue)
    assert state(queue, flow)[0] == "completed"
    assert start(queue, ONE, unique_key="monday") != flow


def test_two_concurrent_starts_with_one_key_create_one_flow(queue):
    with psycopg.connect(queue.dsn) as first, psycopg.connect(queue.dsn) as second:
        [flow] = first.execute(START).fetchone()
        second.execute("SET lock_timeout = '50ms'")
        second.commit()
        with pytest.raises(errors.LockNotAvailable):
            second.execute(START)
        second.rollback()
        first.commit()
        assert second.execute(START).fetchone() == (flow,)
    assert queue.count("ready") == 1


def test_flow_cannot_be_run_again_while_another_flow_of_its_key_is_open(queue):
    flow = start(queue, ONE, unique_key="monday")
    run(queue, "failed")
    other = start(queue, ONE, unique_key="monday")
    with pytest.raises(errors.InvalidParameterValue, match=f"flow {other} has the same unique key, and is open"):
        queue.run("SELECT jobherd.retry_flow(%s)", flow)
    run(queue)
    assert queue.run("SELECT jobherd.retry_flow(%s)", flow) == [(1,)]
    resolve(queue)
    assert places(queue) == {"a:one": ["completed", "ready"]}
    assert start(queue, ONE, unique_key="monday") == flow


@pytest.mark.parametrize(
    ("option", "value"),
    [("version", 0), ("version", "new"), ("unique_key", ""), ("unique_key", "x" * 201), ("unique_key", 7)],
)
def test_start_flow_rejects_an_invalid_version_or_unique_key(queue, option, value):
    with pytest.raises(errors.InvalidParameterValue, match=f'option "{option}" has a bad value'):
        start(queue, **{option: value})


def test_start_flow_skips_an_id_that_is_in_use(queue):
    """A database restored without its sequence has such ids. The start would try the same id indefinitely."""
    [(taken,)] = queue.run(
        "INSERT INTO jobherd.flows (id, name) VALUES (nextval('jobherd.job_ids') + 1, 'restored') RETURNING id"
    )
    queue.run("SET statement_timeout = '10s'")
    assert start(queue, ONE, unique_key="monday") == taken + 1
