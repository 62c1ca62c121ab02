"""The release of the jobs behind a slow job is fenced by the token of its claim."""

from __future__ import annotations

import pytest

from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def test_release_with_the_token_of_an_earlier_claim_changes_nothing(queue):
    """A release request for an earlier claim can arrive after that claim has ended.

    The jobs of the next claim would be ready and running at the same time.
    """
    child = queue.child()
    earlier = queue.enqueue_many("a:b", 3)
    old = child.claim(10)[0].token
    child.settle(old, earlier, "ok")
    jobs = queue.enqueue_many("a:b", 3)
    token = child.claim(10)[0].token
    assert token != old
    rest = {"child": child.id, "token": old, "job": jobs[0], "called": None}
    assert queue.connection.execute(queue.text("recover/requeue_rest"), rest).fetchall() == []
    assert queue.states(jobs) == ["running"] * 3
    assert queue.count("ready") == 0
    released = queue.connection.execute(queue.text("recover/requeue_rest"), rest | {"token": token}).fetchall()
    assert [row[0] for row in released] == jobs[1:]
    assert queue.states(jobs) == ["running", "ready", "ready"]


def test_requeue_with_the_token_of_an_earlier_claim_releases_nothing(queue):
    """Statements name a claim by child and token, and only `requeue` moves its jobs."""
    child = queue.child()
    earlier = queue.enqueue_many("a:b", 1)
    old = child.claim(10)[0].token
    child.settle(old, earlier, "ok")
    jobs = queue.enqueue_many("a:b", 2)
    token = child.claim(10)[0].token
    release = "SELECT id FROM jobherd.requeue(ARRAY[%s::bigint], ARRAY[%s::bigint], only_jobs => %s::bigint[])"
    assert queue.run(release, child.id, old, jobs[1:]) == []
    assert queue.states(jobs) == ["running"] * 2
    assert [row[0] for row in queue.run(release, child.id, token, jobs[1:])] == jobs[1:]
    assert queue.states(jobs) == ["running", "ready"]
