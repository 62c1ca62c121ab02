"""Unsealed flows: any program can add members, and the flow does not end before it is sealed."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg import errors

from tests.sql.test_after import resolve
from tests.sql.test_flows import places, run, start, state
from tests.support.queue import Queue

EXTEND = "SELECT jobherd.extend_flow(%s, %s::jsonb)"
MORE = json.dumps([{"node": "more", "kind": "a:more", "item": None}])
DONE = {"node": "done", "on": "done"}


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def seal(queue, flow):
    return queue.run("SELECT jobherd.seal_flow(%s)", flow)[0][0]


def test_unsealed_flow_ends_after_its_seal_and_its_last_member(queue):
    flow = start(queue, {"node": "one"}, DONE, sealed=False)
    run(queue)
    assert state(queue, flow) == ("open", 0, 1, 0, 0)
    assert queue.run(EXTEND, flow, MORE) == [(1,)]
    resolve(queue)
    assert state(queue, flow) == ("open", 1, 1, 0, 0)
    assert seal(queue, flow) == "sealed"
    resolve(queue)
    assert places(queue)["a:done"] == "blocked"
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)
    assert places(queue)["a:done"] == "ready"
    with pytest.raises(errors.InvalidParameterValue, match="has ended"):
        queue.run(EXTEND, flow, MORE)


def test_flow_without_members_ends_with_its_seal(queue):
    flow = start(queue, DONE, sealed=False)
    resolve(queue)
    assert state(queue, flow)[0] == "open"
    assert seal(queue, flow) == "sealed"
    assert seal(queue, flow) == "sealed", "a second seal changes nothing"
    resolve(queue)
    assert (state(queue, flow)[0], places(queue)) == ("completed", {"a:done": "ready"})
    assert seal(queue, flow) == "completed"
    assert seal(queue, 99999) is None


def test_seal_waits_for_transactions_that_add_members(queue):
    flow = start(queue, sealed=False)
    with psycopg.connect(queue.dsn) as adder:
        adder.execute(EXTEND, [flow, MORE])
        queue.run("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable):
            seal(queue, flow)
        queue.run("RESET lock_timeout")
        resolve(queue)
        assert state(queue, flow)[0] == "open"
    assert seal(queue, flow) == "sealed"
    resolve(queue)
    assert state(queue, flow)[:2] == ("open", 1)


def test_adding_members_waits_for_an_open_seal_and_works_while_the_flow_is_open(queue):
    flow = start(queue, {"node": "one"}, sealed=False)
    with psycopg.connect(queue.dsn) as sealer, psycopg.connect(queue.dsn) as adder:
        sealer.execute("SELECT jobherd.seal_flow(%s)", [flow])
        adder.execute("SET lock_timeout = '50ms'")
        adder.commit()
        with pytest.raises(errors.LockNotAvailable):
            adder.execute(EXTEND, [flow, MORE])
        adder.rollback()
        sealer.commit()
        adder.execute(EXTEND, [flow, MORE])  # as a running member does
    resolve(queue)
    assert state(queue, flow)[:2] == ("open", 2)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_older_snapshot_adds_members_only_if_the_flow_was_not_sealed_since(queue, level):
    flow = start(queue, {"node": "one"}, sealed=False)
    with psycopg.connect(queue.dsn) as adder:
        adder.isolation_level = level
        adder.execute(EXTEND, [flow, MORE])
        run(queue)
        assert state(queue, flow) == ("open", 0, 1, 0, 0), "the open transaction does not delay the count"
        adder.commit()
        resolve(queue)
        assert state(queue, flow) == ("open", 1, 1, 0, 0)
        adder.execute("SELECT")
        assert seal(queue, flow) == "sealed"
        with pytest.raises(errors.SerializationFailure):
            adder.execute(EXTEND, [flow, MORE])
        adder.rollback()
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)


def test_canceled_flow_ends_without_a_seal_after_open_transactions_that_add_members(queue):
    flow = start(queue, {"node": "one"}, DONE, sealed=False)
    with psycopg.connect(queue.dsn) as adder:
        adder.execute(EXTEND, [flow, MORE])
        queue.run("SELECT jobherd.cancel_flow(%s)", flow)
        resolve(queue)
        assert state(queue, flow) == ("open", 0, 0, 0, 1)
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 2)
    assert places(queue)["a:done"] == "ready"
    queue.run("SELECT jobherd.retry_flow(%s)", flow)
    resolve(queue)
    for _ in range(3):
        run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0), "a retry needs no seal"


def test_invalid_value_of_sealed_is_rejected(queue):
    with pytest.raises(errors.InvalidParameterValue, match='option "sealed" has a bad value "perhaps"'):
        start(queue, sealed="perhaps")
