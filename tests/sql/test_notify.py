"""Nothing of ours notifies but by the function that looks whether there is room.

A commit that notifies without room is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jobherd import sql
from tests.support.patience import LIMIT
from tests.support.queue import Queue

ROOT = Path(sql.__file__).parent
BY = "SELECT proname FROM pg_proc WHERE pronamespace = 'jobherd'::regnamespace AND prosrc LIKE '%pg_notify(%'"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def test_no_other_function_notifies_by_itself(queue):
    """But one that runs as the committing role, which may lack the right to call it.

    It asks for room itself.
    """
    assert sorted(queue.run(BY)) == [("notify",), ("wake_sleepers",)]
    assert (
        "pg_notification_queue_usage() < 0.9"
        in queue.run("SELECT prosrc FROM pg_proc WHERE oid = 'jobherd.wake_sleepers'::regproc")[0][0]
    )


def test_no_statement_notifies_by_itself():
    assert [path.name for path in (ROOT / "queries").rglob("*.sql") if "pg_notify(" in path.read_text()] == []


def test_it_notifies_while_there_is_room_and_says_so(queue):
    queue.run("LISTEN a_channel")
    assert queue.run("SELECT jobherd.notify('a_channel', 'a word')") == [(True,)]
    assert [each.payload for each in queue.connection.notifies(timeout=LIMIT, stop_after=1)] == ["a word"]


def test_it_costs_its_caller_no_call(queue):
    """It is one expression, and becomes part of the caller's."""
    (plan,) = (
        row[0]
        for row in queue.run("EXPLAIN (VERBOSE, COSTS OFF) SELECT jobherd.notify('a', 'b')")
        if "Output" in row[0]
    )
    assert "pg_notification_queue_usage" in plan
