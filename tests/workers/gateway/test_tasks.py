"""Tests tasks at a worker: results, heartbeats, releases, cancellation, leases."""

from __future__ import annotations

import psycopg
import pytest

from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, deadlines, sessions, tasks
from jobherd.workers.gateway.actions import Reason, Status
from jobherd.workers.gateway.requests import Outcomes, Reported
from jobherd.workers.gateway.settlements import plan_transaction
from jobherd.workers.gateway.state import TaskState
from jobherd.workers.job.finished import Finished
from tests.workers.gateway.standing import (
    ANY,
    NOW,
    claiming,
    ends,
    jobs,
    lingering,
    open_stream,
    opened,
    out,
    refs,
    unsent,
)


def test_batch_is_acknowledged_once_it_and_all_earlier_batches_are_committed():
    state = out()
    [first] = tasks.on_results(state, 1, 3, refs(41, 11), NOW)
    [second] = tasks.on_results(state, 1, 8, refs(41, 12), NOW)
    assert tasks.on_results(state, 1, 9, (), NOW) == [], "an empty batch waits for the earlier batches"
    assert tasks.on_settled(state, second) == []
    assert tasks.on_settled(state, first) == [a.SendAck(1, 9)]
    assert state.sessions[7].claims == {} and state.sessions[7].out == 0


def test_empty_batch_is_acknowledged_at_once():
    assert tasks.on_results(out(), 1, 1, (), NOW) == [a.SendAck(1, 1)]


def test_batch_number_that_does_not_increase_ends_the_stream():
    state = out()
    tasks.on_results(state, 1, 3, refs(41, 11), NOW)
    assert ends(1, Status.INVALID_ARGUMENT, tasks.on_results(state, 1, 3, refs(41, 11), NOW))


def test_commit_after_the_stream_broke_is_not_acknowledged_but_ends_the_task():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    sessions.on_break(state, 1, NOW)
    assert tasks.on_settled(state, settle) == []
    assert list(state.sessions[7].claims[41]) == [12]


def test_reported_task_frees_its_slot_and_does_not_expire():
    state = out()
    tasks.on_reported(state, 7, refs(41, 11))
    tasks.on_reported(state, 99, refs(41, 12))
    assert state.sessions[7].out == 1
    assert a.ExpireTasks(7, 107, 1, refs(41, 12)) in deadlines.due(state, NOW + 60)


def test_reader_stops_at_256_unrecorded_batches():
    state = out()
    for number in range(1, tasks.MOST_UNSETTLED + 1):
        assert tasks.may_read(state, 1)
        tasks.on_results(state, 1, number, refs(41, 11), NOW)
    assert not tasks.may_read(state, 1)
    tasks.on_settled(state, a.Settle(1, 1, 7, 107, refs(41, 11)))
    assert tasks.may_read(state, 1) and tasks.may_read(state, 99)


def test_heartbeat_extends_a_lease_from_now_and_never_shortens_it():
    state = out()
    for extend, expected in ((10.0, 60.0), (100.0, 100.0), (50.0, 100.0), (-5.0, 100.0), (float("nan"), 100.0)):
        tasks.on_heartbeat(state, 1, 1, refs(41, 11), extend=extend, now=NOW)
        assert state.sessions[7].claims[41][11].deadline == NOW + expected
    assert deadlines.due(state, NOW + 60)[0] == a.ExpireTasks(7, 107, 1, refs(41, 12))
    sessions.on_renewed(state, a.RenewSessions(((7, 1),)), {7}, NOW + 60, NOW + 60)
    assert a.ExpireTasks(7, 107, 1, refs(41, 11)) in deadlines.due(state, NOW + 100)


def test_heartbeat_cannot_extend_a_lease_past_the_timeout():
    state, claim = claiming()
    assignment.on_claimed(state, claim, [a.Found(41, jobs(11, timeout=80.0))], NOW)
    assignment.on_handed(state, 1, 1, NOW)
    tasks.on_heartbeat(state, 1, 1, refs(41, 11), extend=500.0, now=NOW + 50)
    assert state.sessions[7].claims[41][11].deadline == NOW + 80


def test_expired_task_is_recorded_then_cancelled_as_lost_and_claims_wait_for_a_heartbeat():
    state = out()
    assignment.on_ready(state, 1, 2, ANY, 1, lease=0.0, now=NOW)
    tasks.on_heartbeat(state, 1, 1, refs(41, 12), extend=100.0, now=NOW)
    lapse, renew = deadlines.due(state, NOW + 60)
    assert lapse == a.ExpireTasks(7, 107, 1, refs(41, 11)) and renew == a.RenewSessions(((7, 1),))
    sessions.on_renewed(state, renew, {7}, NOW + 60, NOW + 60)
    assert deadlines.due(state, NOW + 61) == [], "a task expires once"
    assert tasks.on_cancel(state, 7, a.TaskRef(11, 41)) == [], "the task has expired"
    assert tasks.on_expired(state, lapse, {}, NOW + 61) == [a.CancelTask(1, a.TaskRef(11, 41), Reason.LOST)]
    assert assignment.next_claim(state, 0, NOW + 61) is None
    assert not assignment.is_idle(state, NOW + 61)
    assert tasks.on_heartbeat(state, 1, 2, refs(41, 11), extend=9.0, now=NOW + 62) == [
        a.SendHeartbeatAck(1, 2, refs(41, 11), 28.0)
    ]
    assert assignment.next_claim(state, 0, NOW + 62) is not None


def test_task_extended_at_another_gateway_is_kept():
    state = out()
    [lapse, _] = deadlines.due(state, NOW + 60)
    assert lapse == a.ExpireTasks(7, 107, 1, refs(41, 11, 12))
    found = tasks.on_expired(state, lapse, {a.TaskRef(11, 41): 40.0}, NOW + 61)
    assert found == [a.CancelTask(1, a.TaskRef(12, 41), Reason.LOST)]
    assert state.sessions[7].out == 1
    assert a.ExpireTasks(7, 107, 1, refs(41, 11)) in deadlines.due(state, NOW + 101)


def test_result_that_arrives_during_expiry_is_recorded_after_it():
    state = out()
    [lapse, _] = deadlines.due(state, NOW + 60)
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11, 12), NOW + 60)
    assert tasks.on_expired(state, lapse, {}, NOW + 61) == []
    assert tasks.on_settled(state, settle) == [a.SendAck(1, 1)]
    assert state.sessions[7].claims == {} and state.sessions[7].out == 0


@pytest.mark.parametrize("behind, gone", [(0, (11, 12)), (11, (12,)), (12, ()), (99, ())])
def test_release_returns_the_tasks_behind_the_named_task(behind, gone):
    state = out()
    found = tasks.on_release(state, 1, 41, behind)
    assert found == ([a.Release(7, 107, refs(41, *gone))] if gone else [])
    assert tasks.on_release(state, 1, 41, behind) == [], "a repeated release does nothing"
    for release in found:
        tasks.on_released(state, release)
    assert state.sessions[7].out == 2 - len(gone)
    assert sorted(state.sessions[7].claims.get(41, {})) == sorted({11, 12} - {*gone})


def test_release_behind_a_recorded_task_returns_the_tasks_after_it():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    tasks.on_settled(state, settle)
    assert tasks.on_release(state, 1, 41, 11) == [a.Release(7, 107, refs(41, 12))]
    assert tasks.on_release(open_stream(), 1, 41, 0) == []


def test_cancellation_is_sent_once_and_never_before_its_task():
    ref = a.TaskRef(11, 41)
    state = out()
    assert tasks.on_cancel(state, 7, ref) == [a.CancelTask(1, ref, Reason.CANCELLED)]
    assert tasks.on_cancel(state, 7, ref) == [] and tasks.on_cancel(state, 8, ref) == []
    state = unsent()
    assert tasks.on_cancel(state, 7, ref) == [], "not before its TaskBatch"
    assert assignment.on_handed(state, 1, 1, NOW) == [a.CancelTask(1, ref, Reason.CANCELLED)]
    state = lingering()
    assert tasks.on_cancel(state, 7, ref) == []
    assert state.sessions[7].claims[41][11].cancelled


def test_results_that_the_database_rejects_are_not_acknowledged_and_keep_their_tasks():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    assert state.sessions[7].out == 1
    known = Finished(11, Outcome("ok"))
    reported = Reported(settle, "w", {refs(41, 11)[0]: known})
    outcomes = Outcomes([reported], plan_transaction(state, []))
    assert ends(1, Status.UNAVAILABLE, outcomes.apply(state, psycopg.errors.DeadlockDetected(), {}, NOW))
    session = state.sessions[7]
    assert (session.out, [task.state for _, task in session.refs()]) == (2, [TaskState.OUT, TaskState.OUT])
    # The worker resumes and sends the result again. The gateway records it.
    state.streams.clear()
    sessions.on_connect(state, 2, NOW)
    sessions.on_hello(state, 2, sessions.Hello("p", 7, refs(41, 11, 12)), NOW)
    sessions.on_opened(state, 2, opened(7, 2, {41: jobs(11, 12)}), NOW, NOW)
    [settle] = tasks.on_results(state, 2, 1, refs(41, 11), NOW)
    assert tasks.on_settled(state, settle) == [a.SendAck(2, 1)]
