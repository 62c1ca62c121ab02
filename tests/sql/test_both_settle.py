"""The worker and the supervisor write about one claim at the same time.

The second writer waits for the first, then must find the row as the first has left it.

The snapshot of the second writer does not contain the new row version. A search by row position
missed that version: a completed or released job stayed in `running` too, and ran twice.
"""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished
from jobherd.workers.settle.settler import Settler
from tests.support.patience import LIMIT
from tests.support.queue import Line, Queue

WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def one_after_the_other(queue, first, second):
    """Run the first in a transaction that stays open until the second waits for it; return the second's result."""
    said: list = []
    with psycopg.connect(queue.dsn) as connection:
        first(connection)
        thread = threading.Thread(target=lambda: said.append(second()))
        thread.start()
        while not queue.run(WAITS)[0][0]:
            assert thread.is_alive(), "the second call did not wait"
        connection.commit()
    thread.join(LIMIT)
    return said[0]


def held(queue):
    return queue.run("SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j ORDER BY 1")


def everywhere(queue):
    """Return whether each job is in one table only."""
    return queue.run("SELECT id FROM jobherd.jobs GROUP BY id HAVING count(*) > 1") == []


def test_settlement_that_waits_for_a_release_of_its_claim_is_recorded(queue):
    ids = queue.enqueue_many("a:b", 4)
    child = queue.child()
    token = child.claim(10)[0].token
    relief = {"child": child.id, "token": token, "job": ids[0], "called": None}
    settled = one_after_the_other(
        queue,
        lambda connection: connection.execute(queue.text("recover/requeue_rest"), relief).fetchall(),
        lambda: child.settle(token, ids[:1], "ok"),
    )
    assert settled == ids[:1]
    assert held(queue) == []
    assert queue.states(ids) == ["completed", "ready", "ready", "ready"]
    assert everywhere(queue)


@pytest.mark.parametrize("through", [1, 2, 3])
def test_release_that_waits_for_a_settlement_returns_only_the_jobs_after_the_running_one(queue, through):
    ids = queue.enqueue_many("a:b", 4)
    child = queue.child()
    token = child.claim(10)[0].token
    settlement = child.settlement(token, ids[:through], "ok")
    back = one_after_the_other(
        queue,
        lambda connection: connection.execute(queue.text("settle/settle_jobs"), settlement).fetchall(),
        lambda: child.connection.execute(
            queue.text("recover/requeue_rest"), {"child": child.id, "token": token, "job": ids[through], "called": None}
        ).fetchall(),
    )
    assert [row[0] for row in back] == ids[through + 1 :]
    assert held(queue) == [(ids[through],)]
    assert child.settle(token, [ids[through]], "ok") == [ids[through]]
    assert held(queue) == []
    assert queue.states(ids) == ["completed"] * (through + 1) + ["ready"] * (3 - through)
    assert everywhere(queue)


def test_second_settlement_of_a_claim_records_only_the_remaining_jobs(queue):
    ids = queue.enqueue_many("a:b", 3)
    child = queue.child()
    token = child.claim(10)[0].token
    settlement = child.settlement(token, ids[:1], "ok")
    settled = one_after_the_other(
        queue,
        lambda connection: connection.execute(queue.text("settle/settle_jobs"), settlement).fetchall(),
        lambda: child.settle(token, ids, "ok"),
    )
    assert settled == ids[1:]
    assert held(queue) == []
    assert queue.count("history") == 3


def test_outcomes_that_the_supervisor_records_during_a_settlement_are_not_reported_as_lost(queue, caplog):
    """The supervisor revokes a claim first, then writes.

    A worker that checks for the revocation only before its settlement misses both.
    """
    ids = queue.enqueue_many("a:b", 3)
    child = queue.child()
    token = child.claim(10)[0].token
    revoked = threading.Event()

    class Slow(Line):
        def run(self, statement, parameters, *, patient=False):
            revoked.set()
            child.settle(token, ids[:1], "ok")  # as the supervisor does, with the child's number and token
            return super().run(statement, parameters, patient=patient)

    settler = Settler(Slow(child.connection, child.id), ran_on="host/1")
    assert settler.settle(
        token,
        [Finished(ids[0], OK, 0.001, time.monotonic(), 7)],
        own=lambda finished: () if revoked.is_set() else finished,
    )
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert queue.states(ids) == ["completed", "running", "running"]
    assert not settler.settle(token, [Finished(ids[0], OK, 0.001, time.monotonic(), 7)]), (
        "without a revocation, the missing outcome means that the claim is lost"
    )
    assert [record.levelname for record in caplog.records if "was lost" in record.message] == ["WARNING"]


def test_worker_detects_a_lost_claim_by_its_last_job_if_the_supervisor_recorded_the_others(queue, caplog):
    ids = queue.enqueue_many("a:b", 3)
    child = queue.child()
    token = child.claim(10)[0].token
    done = [Finished(job, OK, 0.001, time.monotonic(), 7) for job in ids]
    settler = Settler(Line(child.connection, child.id), ran_on="host/1")
    child.settle(token, ids[:1], "ok")  # as the supervisor does
    assert settler.settle(token, done[:2], own=lambda finished: finished[-1:])
    assert not caplog.records
    assert queue.states(ids) == ["completed", "completed", "running"]
    queue.run("DELETE FROM jobherd.running")
    assert not settler.settle(token, done, own=lambda finished: finished[-1:]), (
        "only this worker can have recorded the last job"
    )
    assert [record.levelname for record in caplog.records if "was lost" in record.message] == ["WARNING"]
