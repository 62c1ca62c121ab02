"""Requests to cancel a running job: which supervisor finds them, and the effect of late commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.sql.test_gates import gated
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.queue import Child


@pytest.fixture
def queue(database: str) -> Iterator[Queue]:
    with Queue(database) as queue:
        yield queue


def apply(queue: Queue) -> list[int]:
    return [row[0] for row in queue.run(queue.text("maintenance/apply_cancels").replace("%(most)s", "100"))]


def found(queue: Queue, child: Child) -> list[tuple[int, int, int]]:
    return queue.connection.execute(queue.text("control/find_cancels"), {"supervisor": child.supervisor}).fetchall()


def late(queue: Queue, child: Child, outcome: str, **more: object) -> int:
    """Return a job whose request to cancel commits after the outcome of its attempt."""
    (job,) = child.claim(1)
    with psycopg.connect(queue.dsn) as caller:
        assert caller.execute("SELECT jobherd.cancel(%s)", [job.id]).fetchall() == [("cancelling",)]
        assert found(queue, child) == [], "the request is not committed yet"
        assert child.settle(job.token, [job.id], outcome, **more) == [job.id], (
            "the settlement does not wait for the request"
        )
    return job.id


def test_cancel_request_is_found_only_by_the_supervisor_of_the_job(queue: Queue) -> None:
    jobs = queue.enqueue_many("a:b", 3)
    child, stranger = queue.child(), queue.supervisor().child()
    claim = child.claim(3)
    assert queue.cancel(jobs[1]) == queue.cancel(jobs[1]) == "cancelling"
    assert queue.count("cancels") == 1, "a second request adds no row"
    assert found(queue, child) == [(child.incarnation, claim[0].token, jobs[1])]
    assert found(queue, stranger) == []
    assert apply(queue) == [], "the job runs, so its supervisor cancels it"
    assert child.settle(claim[0].token, [jobs[1]], "cancelled", code="JOB_CANCELLED", error="cancelled") == [jobs[1]]
    assert found(queue, child) == apply(queue) == []
    assert queue.count("cancels") == 0, "the outcome deletes the request"


@pytest.mark.parametrize(
    ("outcome", "delay", "before"),
    [("retry", 30.0, "retrying"), ("snoozed", 30.0, "scheduled"), ("abandoned", None, "ready")],
)
def test_late_cancel_request_cancels_a_waiting_job(
    queue: Queue, outcome: str, delay: float | None, before: str
) -> None:
    queue.enqueue("a:b")
    job = late(queue, queue.child(), outcome, delay=delay, error="why")
    assert queue.state(job) == before
    assert queue.run(queue.text("maintenance/end_pauses"))[0][4], "the maintenance process sees a request"
    assert apply(queue) == [job]
    row = queue.job(job)
    assert (row["state"], row["error_code"]) == ("cancelled", "JOB_CANCELLED")
    assert queue.count("cancels") == 0
    assert not queue.run(queue.text("maintenance/end_pauses"))[0][4]


def test_late_cancel_request_cancels_a_parked_job(queue: Queue) -> None:
    queue.enqueue("slow:one")
    job = late(queue, queue.child(), "abandoned")
    queue.run("SELECT jobherd.pause(kind => 'slow:one')")
    assert gated(queue.child()) == []
    assert queue.count("parked") == 1
    assert apply(queue) == [job]
    assert (queue.state(job), queue.count("parked")) == ("cancelled", 0)


def test_late_cancel_request_cancels_the_next_attempt(queue: Queue) -> None:
    queue.enqueue("a:b")
    child, other = queue.child(), queue.supervisor().child()
    job = late(queue, child, "abandoned")
    (again,) = other.claim(1)
    assert apply(queue) == []
    assert found(queue, other) == [(other.incarnation, again.token, job)]
    assert other.settle(again.token, [job], "retry", error="why", delay=5.0) == [job]
    assert queue.state(job) == "cancelled"


@pytest.mark.parametrize("outcome", ["ok", "failed"])
def test_cancel_request_for_a_finished_job_is_deleted(queue: Queue, outcome: str) -> None:
    queue.enqueue("a:b")
    job = late(queue, queue.child(), outcome, error="why")
    assert apply(queue) == []
    assert queue.count("cancels") == 0
    assert queue.state(job) in {"completed", "failed"}


@pytest.mark.parametrize("swept", [False, True])
def test_late_cancel_request_does_not_cancel_a_job_that_is_run_again_by_hand(queue: Queue, *, swept: bool) -> None:
    queue.enqueue("a:b")
    child = queue.child()
    job = late(queue, child, "failed", error="why")
    if swept:
        apply(queue)
    assert queue.retry(job) == "ready"
    assert queue.count("cancels") == 0
    assert apply(queue) == []
    (again,) = child.claim(1)
    assert found(queue, child) == []
    assert child.settle(again.token, [job], "snoozed", delay=30.0) == [job]
    assert queue.state(job) == "scheduled"


def test_rolled_back_cancel_request_has_no_effect(queue: Queue) -> None:
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    with psycopg.connect(queue.dsn) as caller:
        caller.execute("SELECT jobherd.cancel(%s)", [job.id])
        caller.rollback()
    child.settle(job.token, [job.id], "snoozed", delay=30.0)
    assert apply(queue) == []
    assert queue.state(job.id) == "scheduled"


def test_two_callers_of_cancel_do_not_wait_for_each_other(queue: Queue) -> None:
    queue.enqueue("a:b")
    (job,) = queue.child().claim(1)
    with psycopg.connect(queue.dsn) as one:
        one.execute("SELECT jobherd.cancel(%s)", [job.id])
        queue.run("SET lock_timeout TO '10ms'")
        assert queue.cancel(job.id) == "cancelling"
    assert queue.count("cancels") == 2


def test_late_cancel_request_for_a_locked_job_is_applied_in_a_later_pass(queue: Queue) -> None:
    queue.enqueue("a:b")
    job = late(queue, queue.child(), "abandoned")
    queue.run("SET lock_timeout TO '10ms'")
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT jobherd.reprioritize(%s, 3)", [job])
        assert apply(queue) == []
        assert queue.count("cancels") == 1
    assert apply(queue) == [job]
