"""The log of an attempt is kept as long as its job, and only if it is not empty."""

from __future__ import annotations

import pytest

from tests.support.queue import Queue

SAID = '{"output": "hello", "entries": [{"key": "step"}]}'


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def logs(queue):
    return queue.run(
        "SELECT job, attempt, output, entries, drop_on - (now() AT TIME ZONE 'UTC')::date FROM jobherd.logs ORDER BY job, token"
    )


@pytest.mark.promise("B28")
def test_each_attempt_stores_its_log_under_its_fencing_token(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    (first,) = child.claim(1)
    assert child.settle(first.token + 1, [first.id], "ok", log=SAID) == []
    assert logs(queue) == []
    child.settle(first.token, [first.id], "retry", log=SAID, delay=0.0, code="X", error="e", keep=30)
    (second,) = child.claim(1)
    child.settle(second.token, [second.id], "ok", log='{"output": "done"}', keep=7)
    assert logs(queue) == [(number, 1, "hello", [{"key": "step"}], 30), (number, 2, "done", None, 7)]
    assert [row[0] for row in queue.run(queue.text("observe/show_logs").replace("%(id)s", str(number)))] == [1, 2]


def test_no_log_is_stored_if_it_is_empty_or_the_job_is_not_kept(queue):
    queue.enqueue_many("a:b", 2)
    child = queue.child()
    jobs = child.claim(2)
    child.settle(jobs[0].token, [jobs[0].id], "ok", log=None)
    child.settle(jobs[1].token, [jobs[1].id], "ok", log=SAID, keep=0)
    assert logs(queue) == []


def test_logs_are_deleted_after_their_last_day_and_by_a_purge(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    for job in child.claim(3):
        child.settle(job.token, [job.id], "ok", log=SAID, keep=7)
    (old, purged, _) = [row[0] for row in logs(queue)]
    queue.run("UPDATE jobherd.logs SET drop_on = (now() AT TIME ZONE 'UTC')::date - 1 WHERE job = %s", old)
    assert queue.connection.execute(queue.text("maintenance/delete_logs"), {"most": 10}).rowcount == 1
    queue.run(
        "UPDATE jobherd.history SET finished_at = now() - interval '1 day', started_at = NULL WHERE id = %s", purged
    )
    wanted = {"most": 10, "after": 0, "cutoff": "yesterday", "states": ["completed"], "kind": None}
    queue.connection.execute(
        queue.text("control/purge_history"), wanted | {"cutoff": queue.run("SELECT now() - interval '1 hour'")[0][0]}
    )
    assert len(logs(queue)) == 1
