"""Jobherd notifies only if PostgreSQL's notification queue has room.

PostgreSQL rejects a commit that notifies while this queue is full.
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


def test_only_notify_and_wake_sleepers_call_pg_notify(queue):
    """`wake_sleepers` runs as the committing role, which may lack the right to call `notify`.

    So it checks for room itself.
    """
    assert sorted(queue.run(BY)) == [("notify",), ("wake_sleepers",)]
    assert (
        "pg_notification_queue_usage() < 0.9"
        in queue.run("SELECT prosrc FROM pg_proc WHERE oid = 'jobherd.wake_sleepers'::regproc")[0][0]
    )


def test_no_statement_calls_pg_notify():
    assert [path.name for path in (ROOT / "queries").rglob("*.sql") if "pg_notify(" in path.read_text()] == []


def test_notify_sends_and_returns_true_while_the_notification_queue_has_room(queue):
    queue.run("LISTEN a_channel")
    assert queue.run("SELECT jobherd.notify('a_channel', 'a word')") == [(True,)]
    assert [each.payload for each in queue.connection.notifies(timeout=LIMIT, stop_after=1)] == ["a word"]


def test_notify_is_inlined_into_the_statement_of_its_caller(queue):
    (plan,) = (
        row[0]
        for row in queue.run("EXPLAIN (VERBOSE, COSTS OFF) SELECT jobherd.notify('a', 'b')")
        if "Output" in row[0]
    )
    assert "pg_notification_queue_usage" in plan
