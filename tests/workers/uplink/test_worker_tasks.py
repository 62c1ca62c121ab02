"""Tests which worker has which task, and which caller waits for which results."""

from __future__ import annotations

from jobherd.handlers._remote.events import Ref
from jobherd.workers.uplink.worker_tasks import NEVER, WorkerTasks

A, B, C = Ref(1, 9), Ref(2, 9), Ref(3, 8)


def having(*refs, child=4, lease=30.0, **more):
    tasks = WorkerTasks()
    tasks.add(child, refs, lease=lease, now=0.0, **more)
    return tasks


def test_task_is_open_until_its_result_is_reported_and_awaited_until_it_is_recorded():
    tasks, answers = having(A, B), []
    assert tasks.open_of(4) == tasks.open() == [A, B]
    assert (tasks.child_of(A), tasks.child_of(C)) == (4, 0)
    assert tasks.report([A, B], answers.append) == [A, B]
    assert tasks.open() == []
    assert not tasks.is_empty
    assert tasks.end(A, lost=False) == 0
    assert answers == []
    tasks.end(B, lost=False)
    assert answers == [set()]
    assert tasks.is_empty


def test_answer_names_the_lost_results():
    tasks, answers = having(A, B), []
    tasks.report([A, B], answers.append)
    tasks.end(A, lost=True)
    tasks.end(B, lost=False)
    assert answers == [{A}]


def test_end_of_a_lost_open_task_returns_its_worker():
    assert having(A).end(A, lost=True) == 4


def test_result_that_is_reported_twice_is_sent_once_and_both_reports_are_answered():
    """A worker and its supervisor may both report a result: the supervisor records outcomes behind a long job."""
    tasks, answers = having(A), []
    assert tasks.report([A], lambda lost: answers.append(("worker", lost))) == [A]
    assert tasks.report([A], lambda lost: answers.append(("supervisor", lost))) == []
    tasks.end(A, lost=False)
    assert answers == [("worker", set()), ("supervisor", set())]


def test_result_of_an_unknown_task_is_lost_at_once():
    tasks, answers = having(A), []
    assert tasks.report([C], answers.append) == []
    assert answers == [{C}]
    tasks.report([A, C], answers.append)
    tasks.end(A, lost=False)
    assert answers == [{C}, {C}]


def test_open_tasks_of_one_claim_are_in_order():
    tasks = having(B, A)
    tasks.add(4, [C], lease=30.0, now=0.0)
    tasks.add(5, [Ref(7, 9)], lease=30.0, now=0.0)
    assert tasks.open_of(4, 9) == [B, A]


def test_lease_is_extended_after_each_third_while_its_task_is_open():
    tasks = having(A, B)
    assert tasks.wake_at() == 10.0
    assert tasks.due(9.9) == []
    assert tasks.due(10.0) == [(A, 30.0), (B, 30.0)]
    assert (tasks.due(10.0), tasks.wake_at()) == ([], 20.0)
    tasks.report([A], lambda _: None)
    assert tasks.due(20.0) == [(B, 30.0)]
    tasks.report([B], lambda _: None)
    assert tasks.due(30.0) == []
    assert tasks.wake_at() == NEVER


def test_task_lease_is_not_extended_after_its_end():
    """The supervisor of this host has had the time to end the job. If it has not, the gateway retries it."""
    tasks = having(A, until=15.0)
    assert tasks.due(10.0) == [(A, 30.0)]
    assert tasks.due(20.0) == []
    assert tasks.wake_at() == NEVER
