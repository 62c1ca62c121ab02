"""Tasks that are out: results, heartbeats, releases, cancellation, leases."""

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


def test_a_batch_is_acknowledged_once_it_and_all_before_it_are_committed():
    state = out()
    [first] = tasks.on_results(state, 1, 3, refs(41, 11), NOW)
    [second] = tasks.on_results(state, 1, 8, refs(41, 12), NOW)
    assert tasks.on_results(state, 1, 9, (), NOW) == [], "an empty one waits for its turn"
    assert tasks.on_settled(state, second) == []
    assert tasks.on_settled(state, first) == [a.SendAck(1, 9)]
    assert state.sessions[7].claims == {} and state.sessions[7].out == 0


def test_an_empty_batch_is_acknowledged_at_once():
    assert tasks.on_results(out(), 1, 1, (), NOW) == [a.SendAck(1, 1)]


def test_a_batch_number_that_does_not_grow_ends_the_stream():
    state = out()
    tasks.on_results(state, 1, 3, refs(41, 11), NOW)
    assert ends(1, Status.INVALID_ARGUMENT, tasks.on_results(state, 1, 3, refs(41, 11), NOW))


def test_a_commit_after_the_stream_broke_is_not_acknowledged_and_counts():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    sessions.on_break(state, 1, NOW)
    assert tasks.on_settled(state, settle) == []
    assert list(state.sessions[7].claims[41]) == [12]


def test_a_reported_task_frees_its_slot_and_does_not_lapse():
    state = out()
    tasks.on_reported(state, 7, refs(41, 11))
    tasks.on_reported(state, 99, refs(41, 12))
    assert state.sessions[7].out == 1
    assert a.ExpireTasks(7, 107, 1, refs(41, 12)) in deadlines.due(state, NOW + 60)


def test_the_reader_stops_at_256_unsettled_batches():
    state = out()
    for number in range(1, tasks.MOST_UNSETTLED + 1):
        assert tasks.may_read(state, 1)
        tasks.on_results(state, 1, number, refs(41, 11), NOW)
    assert not tasks.may_read(state, 1)
    tasks.on_settled(state, a.Settle(1, 1, 7, 107, refs(41, 11)))
    assert tasks.may_read(state, 1) and tasks.may_read(state, 99)


def test_a_heartbeat_extends_from_now_and_never_shortens():
    state = out()
    for extend, expected in ((10.0, 60.0), (100.0, 100.0), (50.0, 100.0), (-5.0, 100.0), (float("nan"), 100.0)):
        tasks.on_heartbeat(state, 1, 1, refs(41, 11), extend=extend, now=NOW)
        assert state.sessions[7].claims[41][11].deadline == NOW + expected
    assert deadlines.due(state, NOW + 60)[0] == a.ExpireTasks(7, 107, 1, refs(41, 12))
    sessions.on_renewed(state, a.RenewSessions(((7, 1),)), {7}, NOW + 60, NOW + 60)
    assert a.ExpireTasks(7, 107, 1, refs(41, 11)) in deadlines.due(state, NOW + 100)


def test_no_extension_passes_the_timeout():
    state, claim = claiming()
    assignment.on_claimed(state, claim, [a.Found(41, jobs(11, timeout=80.0))], NOW)
    assignment.on_handed(state, 1, 1, NOW)
    tasks.on_heartbeat(state, 1, 1, refs(41, 11), extend=500.0, now=NOW + 50)
    assert state.sessions[7].claims[41][11].deadline == NOW + 80


def test_a_lease_that_expires_is_settled_then_the_worker_is_told_and_its_readys_wait_for_a_word():
    state = out()
    assignment.on_ready(state, 1, 2, ANY, 1, lease=0.0, now=NOW)
    tasks.on_heartbeat(state, 1, 1, refs(41, 12), extend=100.0, now=NOW)
    lapse, renew = deadlines.due(state, NOW + 60)
    assert lapse == a.ExpireTasks(7, 107, 1, refs(41, 11)) and renew == a.RenewSessions(((7, 1),))
    sessions.on_renewed(state, renew, {7}, NOW + 60, NOW + 60)
    assert deadlines.due(state, NOW + 61) == [], "once"
    assert tasks.on_cancel(state, 7, a.TaskRef(11, 41)) == [], "it is over"
    assert tasks.on_expired(state, lapse, {}, NOW + 61) == [a.CancelTask(1, a.TaskRef(11, 41), Reason.LOST)]
    assert assignment.next_claim(state, 0, NOW + 61) is None
    assert not assignment.is_idle(state, NOW + 61)
    assert tasks.on_heartbeat(state, 1, 2, refs(41, 11), extend=9.0, now=NOW + 62) == [
        a.SendHeartbeatAck(1, 2, refs(41, 11), 28.0)
    ]
    assert assignment.next_claim(state, 0, NOW + 62) is not None


def test_an_extension_at_another_gateway_keeps_the_task():
    state = out()
    [lapse, _] = deadlines.due(state, NOW + 60)
    assert lapse == a.ExpireTasks(7, 107, 1, refs(41, 11, 12))
    found = tasks.on_expired(state, lapse, {a.TaskRef(11, 41): 40.0}, NOW + 61)
    assert found == [a.CancelTask(1, a.TaskRef(12, 41), Reason.LOST)]
    assert state.sessions[7].out == 1
    assert a.ExpireTasks(7, 107, 1, refs(41, 11)) in deadlines.due(state, NOW + 101)


def test_a_result_that_meets_the_lapse_is_settled_behind_it():
    state = out()
    [lapse, _] = deadlines.due(state, NOW + 60)
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11, 12), NOW + 60)
    assert tasks.on_expired(state, lapse, {}, NOW + 61) == []
    assert tasks.on_settled(state, settle) == [a.SendAck(1, 1)]
    assert state.sessions[7].claims == {} and state.sessions[7].out == 0


@pytest.mark.parametrize("behind, gone", [(0, (11, 12)), (11, (12,)), (12, ()), (99, ())])
def test_a_release_gives_back_what_stands_behind_a_task(behind, gone):
    state = out()
    found = tasks.on_release(state, 1, 41, behind)
    assert found == ([a.Release(7, 107, refs(41, *gone))] if gone else [])
    assert tasks.on_release(state, 1, 41, behind) == [], "once"
    for release in found:
        tasks.on_released(state, release)
    assert state.sessions[7].out == 2 - len(gone)
    assert sorted(state.sessions[7].claims.get(41, {})) == sorted({11, 12} - {*gone})


def test_a_release_behind_a_task_that_is_recorded_finds_its_place():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    tasks.on_settled(state, settle)
    assert tasks.on_release(state, 1, 41, 11) == [a.Release(7, 107, refs(41, 12))]
    assert tasks.on_release(open_stream(), 1, 41, 0) == []


def test_a_cancellation_reaches_the_worker_once_however_it_comes():
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


def test_results_that_the_database_rejected_are_not_acknowledged_and_their_tasks_stay():
    state = out()
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    assert state.sessions[7].out == 1
    known = Finished(11, Outcome("ok"))
    reported = Reported(settle, "w", {refs(41, 11)[0]: known})
    outcomes = Outcomes([reported], plan_transaction(state, []))
    assert ends(1, Status.UNAVAILABLE, outcomes.apply(state, psycopg.errors.DeadlockDetected(), {}, NOW))
    session = state.sessions[7]
    assert (session.out, [task.state for _, task in session.refs()]) == (2, [TaskState.OUT, TaskState.OUT])
    # The worker resumes, sends the result again, and it counts.
    state.streams.clear()
    sessions.on_connect(state, 2, NOW)
    sessions.on_hello(state, 2, sessions.Hello("p", 7, refs(41, 11, 12)), NOW)
    sessions.on_opened(state, 2, opened(7, 2, {41: jobs(11, 12)}), NOW, NOW)
    [settle] = tasks.on_results(state, 2, 1, refs(41, 11), NOW)
    assert tasks.on_settled(state, settle) == [a.SendAck(2, 1)]
