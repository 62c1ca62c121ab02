"""Two jobs have the same id, after raw SQL, a COPY or a sequence that was set back.

The second job waits until the first has left the table, and blocks no other job.
"""

from __future__ import annotations

import pytest

from tests.sql.test_gates import gated
from tests.support.queue import Queue

TWIN = "INSERT INTO jobherd.ready (id, kind, queue) VALUES (%s, 'a:b', 'nobodys')"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def ready(queue):
    return {job for (job,) in queue.run("SELECT id FROM jobherd.ready WHERE queue <> 'nobodys'")}


def first_goes(queue, job):
    assert queue.run("DELETE FROM jobherd.ready WHERE id = %s AND queue = 'nobodys' RETURNING id", job) == [(job,)]


def test_due_job_with_a_duplicate_id_does_not_block_other_due_jobs(queue):
    job, other = queue.enqueue_many("a:b", 2, delay=60)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s'")
    queue.run(TWIN, job)
    assert queue.promote() == 1
    assert ready(queue) == {other}
    assert queue.run(queue.text("maintenance/find_next_due")) == [], (
        "otherwise the maintenance process would query in a loop"
    )
    first_goes(queue, job)
    assert len(queue.run(queue.text("maintenance/find_next_due"))) == 1
    assert queue.promote() == 1
    assert ready(queue) == {job, other}


def test_parked_job_with_a_duplicate_id_does_not_block_parked_jobs_of_any_kind(queue):
    jobs = queue.enqueue_many("slow:one", 3)
    others = queue.enqueue_many("slow:two", 2)
    queue.run(
        "SELECT jobherd.set_limit(kind => kind, max_running => 1) FROM unnest('{slow:one,slow:two}'::text[]) AS kind"
    )
    child = queue.child()
    while gated(child):
        pass
    queue.run(
        "SELECT jobherd.set_limit(kind => kind, max_running => NULL) FROM unnest('{slow:one,slow:two}'::text[]) AS kind"
    )
    queue.run(TWIN, jobs[1])
    moved = [
        queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10}).rowcount for _ in range(3)
    ]
    assert (moved, ready(queue)) == ([1, 1, 0], {jobs[2], others[1]})
    first_goes(queue, jobs[1])
    assert queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10}).rowcount == 1


def test_claim_parks_a_job_with_a_duplicate_id_under_a_new_id(queue):
    jobs = queue.enqueue_many("slow:one", 2)
    queue.run("SELECT jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    child = queue.child()
    assert [row["id"] for row in [*gated(child), *gated(child)]] == jobs[:1]
    queue.run("INSERT INTO jobherd.ready (id, kind, payload) VALUES (%s, 'slow:one', '{\"n\": \"twin\"}')", jobs[1])
    other = queue.enqueue("a:b")
    assert [row["id"] for row in gated(child)] == [other]
    assert queue.run("SELECT payload ->> 'n', id = %s FROM jobherd.parked ORDER BY 1", jobs[1]) == [
        ("1", True),
        ("twin", False),
    ]


@pytest.mark.parametrize("lost", ["supervisor", "child"])
def test_lost_job_with_a_duplicate_id_does_not_block_other_lost_jobs(queue, lost):
    job, other = queue.enqueue("a:b"), queue.enqueue("a:b", queue="other")
    child = queue.child()
    assert [claimed.id for claimed in [*child.claim(1), *child.claim(1)]] == [job, other]
    queue.run(TWIN, job)
    if lost == "supervisor":
        assert queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 1)
        assert queue.orphans() == []
    else:
        queue.run("DELETE FROM jobherd.children")
        assert queue.orphans() == [other]
    assert ready(queue) == {other}
    first_goes(queue, job)
    assert queue.orphans() == [job]
    assert ready(queue) == {job, other}


@pytest.mark.parametrize("lost", ["supervisor", "child"])
def test_two_running_jobs_with_the_same_id_are_both_requeued(queue, lost):
    job, other = queue.enqueue("a:b", '{"n": 1}'), queue.enqueue("a:b")
    child = queue.child()
    claimed = [*child.claim(1), *child.claim(1)]
    queue.run("INSERT INTO jobherd.ready (id, kind, payload) VALUES (%s, 'a:b', '{\"n\": 2}')", job)
    assert [one.id for one in [*claimed, *child.claim(1)]] == [job, other, job]
    if lost == "supervisor":
        assert queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 3)
    else:
        queue.run("DELETE FROM jobherd.children")
        assert len(queue.orphans()) == 3
    numbers = queue.run("SELECT payload ->> 'n', id FROM jobherd.ready WHERE id <> %s ORDER BY 1", other)
    assert [number for number, _ in numbers] == ["1", "2"]
    assert numbers[0][1] == job != numbers[1][1]


def child_dies(queue, child, jobs):
    child.release()


def answer_is_lost(queue, child, jobs):
    child.connection.execute(queue.text("recover/requeue_unacknowledged"), {"child": child.id, "known_tokens": []})


def supervisor_leaves(queue, child, jobs):
    queue.connection.execute(queue.text("recover/unregister_supervisor"), {"supervisor": child.supervisor})


def first_takes_long(queue, child, jobs):
    child.connection.execute(
        queue.text("recover/requeue_rest"),
        {"child": child.id, "token": jobs[0].token, "job": jobs[0].id, "called": None},
    )


def abandoned(queue, child, jobs):
    child.settle(jobs[0].token, [job.id for job in jobs], "abandoned")


@pytest.mark.parametrize(
    "how", [child_dies, answer_is_lost, supervisor_leaves, first_takes_long, abandoned], ids=lambda how: how.__name__
)
def test_claim_with_a_duplicate_id_is_released(queue, how):
    """Regression: the release of the whole claim failed. The job whose id is taken returns under a new id."""
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    claimed = child.claim(3)
    taken, other = (job.id for job in claimed[1:])
    queue.run(TWIN, taken)
    how(queue, child, claimed)
    back = queue.run(
        "SELECT id, payload ->> 'n' FROM jobherd.ready WHERE queue <> 'nobodys' AND payload ->> 'n' <> '0' ORDER BY 2"
    )
    assert [n for _, n in back] == ["1", "2"]
    assert back[1][0] == other
    assert back[0][0] not in {job.id for job in claimed}


def test_retry_whose_id_is_already_scheduled_gets_a_new_id(queue):
    queue.enqueue_many("a:b", 2)
    child = queue.child()
    claimed = child.claim(2)
    ids = [job.id for job in claimed]
    queue.run("INSERT INTO jobherd.scheduled (id, kind, queue) VALUES (%s, 'a:b', 'nobodys')", ids[0])
    assert child.settle(claimed[0].token, ids, "retry", delay=60.0) == ids
    assert queue.count("running") == 0
    later = [
        job
        for (job,) in queue.run("SELECT id FROM jobherd.scheduled WHERE queue <> 'nobodys' ORDER BY payload ->> 'n'")
    ]
    assert later[1] == ids[1]
    assert later[0] not in ids
