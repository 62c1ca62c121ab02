"""Streams whose clients send no Readys, claims that are answered in any case, and what unary calls say."""

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


def test_a_stream_asks_for_as_many_tasks_as_it_has_slots_and_once():
    state = open_stream()
    assert top_up(state) == {1: LIMITS.slots}
    assert top_up(state) == {1: LIMITS.slots}
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    assert [share.size for share in claim.shares] == [LIMITS.slots]


def test_room_goes_to_the_ready_that_waits_and_beside_one_that_claims():
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


def test_tasks_that_were_not_sent_take_room():
    assert top_up(unsent()) == {2: LIMITS.slots - 2}


def test_a_large_stream_asks_by_readys_of_at_most_one_claim():
    state = open_stream()
    state.streams[1].slots = 1200
    assert top_up(state) == {1: 500, 2: 500, 3: 200}


def test_nothing_is_asked_for_a_stream_that_is_gone_or_while_the_gateway_drains():
    state = open_stream()
    sessions.on_drain(state, 5.0)
    assert top_up(state) == {}
    sessions.on_break(state, 1, NOW)
    assignment.top_up(state, 1, ANY, lease=0.0)
    assert not state.groups


def test_a_ready_that_does_not_wait_is_answered_by_a_claim_that_is_made_in_any_case():
    state, claim = claiming()
    assignment.on_claimed(state, claim, [a.Found(0)], NOW)
    assert assignment.next_claim(state, 0, NOW) is None, "it waits for a wake-up"
    assignment.on_ready(state, 1, 2, ANY, 1, lease=0.0, now=NOW)
    assignment.answer_by_next_claim(state, 1, 2)
    again = assignment.next_claim(state, 0, NOW)
    assert again is not None
    assert assignment.on_claimed(state, again, [a.Found(0)] * 2, NOW) == [a.SendTasks(1, 2, 0)]
    assert list(state.streams[1].readys) == [1]


def test_a_call_of_a_worker_ends_the_silence_of_its_stream_and_keeps_a_session_without_one():
    state = out()
    later = NOW + LIMITS.task_lease
    assert [type(action) for action in deadlines.due(state, later)][0] is a.ExpireTasks
    assert state.streams[1].silent
    sessions.on_sign_of_life(state, 7, later)
    assert not state.streams[1].silent
    state = lingering()
    sessions.on_sign_of_life(state, 7, NOW)
    assert state.sessions[7].keep_until == NOW + LIMITS.session_lease


def test_tasks_that_ended_elsewhere_are_forgotten_unless_their_end_is_on_its_way_here():
    state = out()
    tasks.on_reported(state, 7, refs(41, 12))
    tasks.on_ended_elsewhere(state, 7, refs(41, 11, 12))
    assert list(state.sessions[7].claims[41]) == [12]
    assert state.sessions[7].out == 0


def test_a_session_of_a_script_lasts_as_long_as_the_leases_of_its_tasks():
    state = out()
    tasks.extend_tasks(state.sessions[7], refs(41, 12), 300.0, NOW)
    calls = Unary(SimpleNamespace(state=state))  # type: ignore[arg-type]
    assert calls.rest_of(7, Principal("p"), NOW) == 300.0
    assert calls.rest_of(7, Principal("other"), NOW) == 0.0
    assert calls.rest_of(8, Principal("p"), NOW) == 0.0
