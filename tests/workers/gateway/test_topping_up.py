"""Tests streams whose clients send no Readys, Readys that must not wait, and the effects of unary calls."""

from __future__ import annotations

from types import SimpleNamespace

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, deadlines, sessions, tasks
from jobherd.workers.gateway.access import Principal
from jobherd.workers.gateway.state import State
from jobherd.workers.gateway.unary import Unary
from tests.workers.gateway.standing import ANY, LIMITS, NOW, claiming, jobs, lingering, open_stream, out, refs, unsent


def readys(state: State) -> dict[int, int]:
    return {number: ready.count for number, ready in state.streams[1].readys.items()}


def top_up(state: State) -> dict[int, int]:
    assignment.top_up(state, 1, ANY, lease=0.0)
    return readys(state)


def test_top_up_requests_a_task_for_each_slot_only_once():
    state = open_stream()
    assert top_up(state) == {1: LIMITS.slots}
    assert top_up(state) == {1: LIMITS.slots}
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    assert [share.size for share in claim.shares] == [LIMITS.slots]


def test_free_slots_go_to_a_waiting_ready_or_to_a_new_one_while_it_claims():
    state = open_stream()
    top_up(state)
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    assignment.on_claimed(state, claim, [a.Found(41, jobs(11, 12, 13))], NOW)
    assignment.on_handed(state, 1, 1, NOW)
    assignment.on_written(state, 1, 1)
    assert top_up(state) == {2: LIMITS.slots - 3}
    tasks.on_reported(state, 7, refs(41, 11))
    assert top_up(state) == {2: LIMITS.slots - 2}
    assert assignment.next_claim(state, 0, NOW) is not None
    tasks.on_reported(state, 7, refs(41, 12))
    assert top_up(state) == {2: LIMITS.slots - 2, 3: 1}


def test_unsent_tasks_occupy_slots():
    assert top_up(unsent()) == {2: LIMITS.slots - 2}


def test_large_top_up_is_split_into_readys_of_at_most_500():
    state = open_stream()
    state.streams[1].slots = 1200
    assert top_up(state) == {1: 500, 2: 500, 3: 200}


def test_top_up_requests_nothing_for_a_broken_stream_or_during_a_drain():
    state = open_stream()
    sessions.on_drain(state, 5.0)
    assert top_up(state) == {}
    sessions.on_break(state, 1, NOW)
    assignment.top_up(state, 1, ANY, lease=0.0)
    assert not state.groups


def test_ready_that_must_not_wait_is_answered_by_the_next_claim_even_if_it_is_empty():
    state, claim = claiming()
    assignment.on_claimed(state, claim, [a.Found(0)], NOW)
    assert assignment.next_claim(state, 0, NOW) is None, "an empty group waits for a wake"
    assignment.on_ready(state, 1, 2, ANY, 1, lease=0.0, now=NOW)
    assignment.answer_by_next_claim(state, 1, 2)
    again = assignment.next_claim(state, 0, NOW)
    assert again is not None
    assert assignment.on_claimed(state, again, [a.Found(0)] * 2, NOW) == [a.SendTasks(1, 2, 0)]
    assert list(state.streams[1].readys) == [1]


def test_unary_call_keeps_the_session_of_its_worker_with_or_without_a_stream():
    state = out()
    later = NOW + LIMITS.task_lease
    assert [type(action) for action in deadlines.due(state, later)][0] is a.ExpireTasks
    assert state.streams[1].silent
    sessions.on_sign_of_life(state, 7, later)
    assert not state.streams[1].silent
    state = lingering()
    sessions.on_sign_of_life(state, 7, NOW)
    assert state.sessions[7].keep_until == NOW + LIMITS.session_lease


def test_tasks_that_ended_elsewhere_are_removed_unless_their_result_was_reported_here():
    state = out()
    tasks.on_reported(state, 7, refs(41, 12))
    tasks.on_ended_elsewhere(state, 7, refs(41, 11, 12))
    assert list(state.sessions[7].claims[41]) == [12]
    assert state.sessions[7].out == 0


def test_session_of_unary_calls_lasts_as_long_as_its_longest_task_lease():
    state = out()
    tasks.extend_tasks(state.sessions[7], refs(41, 12), 300.0, NOW)
    calls = Unary(SimpleNamespace(state=state))  # type: ignore[arg-type]
    assert calls.rest_of(7, Principal("p"), NOW) == 300.0
    assert calls.rest_of(7, Principal("other"), NOW) == 0.0
    assert calls.rest_of(8, Principal("p"), NOW) == 0.0
