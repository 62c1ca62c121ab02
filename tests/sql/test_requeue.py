"""The function `requeue` releases jobs of claims that still exist, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.queue import Queue

REQUEUE = "SELECT id, fate FROM jobherd.requeue(%s, %s, only_jobs => %s) ORDER BY id"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def running(queue: Queue) -> list[tuple[int, list[int]]]:
    return queue.run("SELECT token, ARRAY(SELECT j.id FROM unnest(jobs) AS j) FROM jobherd.running ORDER BY token")


def test_claim_is_released_by_its_token_and_other_claims_of_the_worker_stay(queue):
    first, second = queue.enqueue("a:b"), queue.enqueue("a:b")
    child = queue.child()
    one, other = child.claim(1)[0].token, child.claim(1)[0].token
    assert queue.run(REQUEUE, [child.id], [one], None) == [(first, "ready")]
    assert running(queue) == [(other, [second])]
    assert queue.run(REQUEUE, [child.id], [one], None) == []
    assert queue.run(REQUEUE, [child.id + 1], [other], None) == []
    assert queue.states([first, second]) == ["ready", "running"]


def test_settled_claim_is_not_released(queue):
    job, child = queue.enqueue("a:b"), queue.child()
    token = child.claim(1)[0].token
    child.settle(token, [job], "ok")
    assert queue.run(REQUEUE, [child.id], [token], None) == []
    assert queue.state(job) == "completed"


def test_some_jobs_of_a_claim_are_released_and_the_others_keep_their_order(queue):
    jobs, child = queue.enqueue_many("a:b", 4), queue.child()
    token = child.claim(4)[0].token
    strange = queue.enqueue("a:b")
    wanted = [jobs[3], jobs[1], strange]
    assert queue.run(REQUEUE, [child.id], [token], wanted) == [(jobs[1], "ready"), (jobs[3], "ready")]
    assert running(queue) == [(token, [jobs[0], jobs[2]])]
    assert queue.run(REQUEUE, [child.id], [token], []) == []
    assert running(queue) == [(token, [jobs[0], jobs[2]])]
    assert len(queue.run(REQUEUE, [child.id], [token], jobs)) == 2
    assert running(queue) == []


def test_rest_of_a_claim_is_not_released_after_its_slow_job_has_finished(queue):
    """Race: the job finishes just after the supervisor has seen it run for long."""
    jobs, child = queue.enqueue_many("a:b", 3), queue.child()
    token = child.claim(3)[0].token
    child.settle(token, jobs[:1], "ok")
    rest = {"child": child.id, "token": token, "job": jobs[0], "called": None}
    assert queue.connection.execute(queue.text("recover/requeue_rest"), rest).fetchall() == []
    assert running(queue) == [(token, jobs[1:])]
