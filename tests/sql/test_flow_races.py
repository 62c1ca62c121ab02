"""Races between transactions that count, add, retry and search members of flows. tests/models/resolve.pml has the interleavings."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest
from psycopg import errors

from tests.sql.test_after import end, mark, resolve
from tests.sql.test_flows import look_for_vanished, places, run, start, state
from tests.support.queue import Queue

EXTEND = "SELECT jobherd.extend_flow(%s, %s::jsonb)"
RETRY = "SELECT jobherd.retry_flow(%s)"
MORE = json.dumps([{"node": "more", "kind": "a:more", "item": None}])
DONE = {"node": "done", "on": "done"}
PAUSE = 42
"""Key of the advisory lock for which `count_slowly` waits after it has taken the rows of `ends`."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def count_slowly(queue, flow):
    """Return a started thread that counts the ends of a flow, and waits between taking the rows and ending the flow."""
    queue.run(
        "CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN PERFORM pg_advisory_lock({PAUSE}); PERFORM pg_advisory_unlock({PAUSE}); RETURN NEW; END $$"
    )
    queue.run("CREATE TRIGGER pause BEFORE UPDATE ON jobherd.flows FOR EACH ROW EXECUTE FUNCTION public.pause()")

    def count():
        with psycopg.connect(queue.dsn, autocommit=True) as session:
            session.execute("SELECT jobherd.resolve_flow(%s, 10)", [flow])

    thread = threading.Thread(target=count)
    thread.start()
    waits = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = {PAUSE} AND NOT granted"
    while not queue.run(waits) and thread.is_alive():
        pass
    return thread


def test_canceled_unsealed_flow_waits_for_a_member_added_while_ends_are_counted(queue):
    flow = start(queue, {"node": "one"}, DONE, sealed=False)
    run(queue)
    with psycopg.connect(queue.dsn) as adder, psycopg.connect(queue.dsn, autocommit=True) as gate:
        adder.execute(EXTEND, [flow, MORE])
        queue.run("SELECT jobherd.cancel_flow(%s)", flow)
        gate.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
        counting = count_slowly(queue, flow)
        adder.commit()
        gate.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])
        counting.join()
    assert state(queue, flow)[0] == "open"
    queue.run("DROP TRIGGER pause ON jobherd.flows")
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 1, 0, 1)
    assert places(queue) == {"a:one": "completed", "a:more": "cancelled", "a:done": "ready"}


def test_two_searches_at_the_same_time_count_a_vanished_member_once(queue):
    flow = start(queue, {"node": "gone"}, {"node": "live"}, DONE, policy="continue")
    queue.run("DELETE FROM jobherd.ready WHERE kind = 'a:gone'")
    with psycopg.connect(queue.dsn) as first, psycopg.connect(queue.dsn) as second:
        for session in (first, second):
            session.execute("SELECT jobherd.find_vanished_members(NULL, 100)")
    resolve(queue)
    assert state(queue, flow) == ("open", 1, 0, 0, 1)
    assert places(queue) == {"a:live": "ready", "a:done": "blocked"}


def test_job_enqueued_while_its_flow_ends_becomes_ready_without_the_hourly_search(queue):
    flow = start(queue, {"node": "one"})
    end(queue)
    with psycopg.connect(queue.dsn) as resolver:
        assert resolver.execute("SELECT jobherd.resolve_flow(%s, 10)", [flow]).fetchall() == [(1,)]
        queue.run("SELECT jobherd.enqueue('a:late', '{}', jsonb_build_object('after', %s))", flow)
        mark(queue)
    resolve(queue)
    assert places(queue) == {"a:one": "completed", "a:late": "ready"}
    look_for_vanished(queue)
    assert queue.count("ends") == 0


def test_end_that_was_not_passed_on_does_not_cancel_the_callback_of_a_retried_flow(queue):
    flow = start(queue, {"node": "one"}, {"node": "good", "on": "success"}, policy="continue")
    end(queue, "failed")
    with psycopg.connect(queue.dsn) as user:
        user.execute("SELECT FROM jobherd.blocked FOR UPDATE")
        resolve(queue)
        assert state(queue, flow) == ("failed", 0, 0, 1, 0)
        assert queue.run(RETRY, flow) == [(1,)]
    resolve(queue)
    assert places(queue) == {"a:one": "ready", "a:good": "blocked"}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 1, 0, 0)
    assert places(queue) == {"a:one": "completed", "a:good": "ready"}


def test_end_of_a_member_that_was_not_passed_on_does_not_cancel_what_waits_for_it_in_a_retried_flow(queue):
    flow = start(queue, {"node": "one"}, {"node": "two", "after": "one"}, policy="continue")
    end(queue, "failed")
    with psycopg.connect(queue.dsn) as user:
        user.execute("SELECT FROM jobherd.blocked FOR UPDATE")
        resolve(queue)
        queue.run("SELECT jobherd.cancel_flow(%s)", flow)
    assert state(queue, flow)[0] == "open"
    resolve(queue)
    assert state(queue, flow) == ("failed", 0, 0, 1, 1)
    assert queue.run(RETRY, flow) == [(2,)]
    resolve(queue)
    run(queue)
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)


def test_retry_of_a_flow_in_an_older_snapshot_does_not_miss_a_member_that_was_retried_by_hand(queue):
    flow = start(queue, {"node": "one"}, {"node": "two"}, DONE, policy="continue")
    one = run(queue)
    run(queue, "failed")
    with psycopg.connect(queue.dsn) as user:
        user.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        user.execute("SELECT")
        assert queue.retry(one) == "ready"
        resolve(queue)
        with pytest.raises(errors.SerializationFailure):
            user.execute(RETRY, [flow])
    assert queue.run(RETRY, flow) == [(1,)]
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 0, 0, 0)
