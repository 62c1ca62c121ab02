"""Tests which Readys a claim serves, and that each Ready is answered once."""

from __future__ import annotations

import pytest

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, deadlines, sessions, tasks
from jobherd.workers.gateway.actions import Status
from jobherd.workers.gateway.state import Limits, State
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
    waiting,
)

X = a.Filter(kinds=("x",))


def streams(count: int, slots: int = 1000) -> State:
    """Streams 1 to count, with the sessions 1 to count."""
    state = State(Limits(slots=slots))
    for number in range(1, count + 1):
        sessions.on_connect(state, number, NOW)
        sessions.on_hello(state, number, sessions.Hello("p"), NOW)
        sessions.on_opened(state, number, opened(number), NOW, NOW)
    return state


def ask(state: State, stream: int, number: int, count: int = 1, accepts: a.Filter = ANY) -> list[a.Action]:
    return assignment.on_ready(state, stream, number, accepts, count, lease=0.0, now=NOW)


def shares(claim: a.Claim | None) -> list[tuple[int, int, int]]:
    assert claim is not None
    return [(share.stream, share.ready, share.size) for share in claim.shares]


def nothing(state: State, claim: a.Claim, now: float = NOW) -> list[a.Action]:
    return assignment.on_claimed(state, claim, [a.Found(0)] * len(claim.shares), now)


def test_group_held_by_a_rate_limit_claims_again_when_the_limit_opens():
    state = streams(1)
    ask(state, 1, 1)
    claim = assignment.next_claim(state, 0, NOW)
    assignment.on_claimed(state, claim, [a.Found(0)], NOW, 0.25)
    assert assignment.next_claim(state, 0, NOW + 0.2) is None
    assert deadlines.wake_at(state, NOW) == NOW + 0.25
    claim = assignment.next_claim(state, 0, NOW + 0.25)
    assert shares(claim) == [(1, 1, 1)]
    assignment.on_claimed(state, claim, [a.Found(0)], NOW + 1, 1e9)
    assert state.groups[ANY].look_at == NOW + 1 + state.limits.poll, "the poll comes first"


def test_claim_serves_the_readys_of_all_streams_in_turns():
    state = streams(3)
    for stream, number, count in ((1, 1, 4), (1, 2, 4), (1, 3, 4), (2, 1, 2), (3, 1, 1), (3, 2, 1)):
        ask(state, stream, number, count)
    claim = assignment.next_claim(state, 0, NOW)
    assert shares(claim) == [(1, 1, 4), (2, 1, 2), (3, 1, 1), (1, 2, 4), (3, 2, 1), (1, 3, 4)]
    assert assignment.next_claim(state, 0, NOW) is None, "one claim at a time"


def test_claim_has_at_most_500_jobs_and_the_next_one_serves_the_skipped_stream_first():
    state = streams(3)
    for stream, count in ((1, 300), (2, 300), (3, 200)):
        ask(state, stream, 1, count)
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None and shares(claim) == [(1, 1, 300), (3, 1, 200)]
    found = [a.Found(41, jobs(*range(300))), a.Found(42, jobs(*range(300, 500)))]
    assert assignment.on_claimed(state, claim, found, NOW) == [a.SendTasks(1, 1, 41), a.SendTasks(3, 1, 42)]
    ask(state, 1, 2, 300)
    assert shares(assignment.next_claim(state, 0, NOW)) == [(2, 1, 300)]


def test_groups_take_turns_and_an_empty_group_waits_for_a_wake_or_the_poll():
    state = streams(2)
    ask(state, 1, 1)
    ask(state, 2, 1, accepts=X)
    ask(state, 2, 2, accepts=X)
    assert not assignment.is_idle(state, NOW)
    for accepts in (ANY, X):
        claim = assignment.next_claim(state, 0, NOW)
        assert claim is not None and claim.filter == accepts and not assignment.is_idle(state, NOW)
        assert nothing(state, claim) == []
    assert assignment.next_claim(state, 0, NOW) is None and assignment.is_idle(state, NOW)
    ask(state, 1, 2)
    assert assignment.next_claim(state, 0, NOW) is None, "new jobs would have caused a wake"
    assert min(deadlines.wake_at(state, NOW + 10), NOW + 30) == NOW + 5
    assert assignment.next_claim(state, 0, NOW + 29.9) is None
    assert not assignment.is_idle(state, NOW + 30)
    state.sessions[1].lease_until = state.sessions[2].lease_until = NOW + 99
    assert shares(assignment.next_claim(state, 0, NOW + 30)) == [(1, 1, 1), (1, 2, 1)]


def test_wake_during_an_empty_claim_starts_another_claim():
    state, claim = claiming()
    assignment.on_wake(state)
    nothing(state, claim)
    assert not assignment.is_idle(state, NOW)
    assert assignment.next_claim(state, 0, NOW) is not None


def test_claim_that_found_a_job_is_followed_by_another_claim_at_once():
    state = streams(2)
    ask(state, 1, 1)
    ask(state, 2, 1)
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    assert assignment.on_claimed(state, claim, [a.Found(41, jobs(1)), a.Found(0)], NOW) == [a.SendTasks(1, 1, 41)]
    assert shares(assignment.next_claim(state, 0, NOW)) == [(2, 1, 1)]


def test_stream_with_an_unwritten_task_batch_makes_no_claim():
    state = unsent()
    ask(state, 1, 2)
    assert assignment.next_claim(state, 0, NOW) is None and not assignment.is_idle(state, NOW)
    assignment.on_handed(state, 1, 1, NOW)
    assert assignment.next_claim(state, 0, NOW) is None
    assignment.on_written(state, 1, 1)
    assert shares(assignment.next_claim(state, 0, NOW)) == [(1, 2, 1)]


def test_stream_ends_if_its_client_reads_nothing_for_one_lease():
    state = unsent()
    assignment.on_handed(state, 1, 1, NOW + 1)
    assert all(not isinstance(one, a.EndStream) for one in deadlines.due(state, NOW + 30.9))
    assert ends(1, Status.RESOURCE_EXHAUSTED, deadlines.due(state, NOW + 31))
    state = out()
    assert all(not isinstance(one, a.EndStream) for one in deadlines.due(state, NOW + 50)), "it was written"
    assert assignment.on_handed(state, 9, 1, NOW) == []
    assignment.on_written(state, 9, 1)


def test_number_of_timers_does_not_grow_with_the_batches_of_a_stream():
    state = waiting()
    for number in range(1, 200):
        claim = assignment.next_claim(state, 0, NOW)
        assert claim is not None
        assignment.on_claimed(state, claim, [a.Found(number, jobs(number))], NOW)
        assignment.on_handed(state, 1, number, NOW)
        assignment.on_written(state, 1, number)
        for action in tasks.on_results(state, 1, number, refs(number, number), NOW):
            tasks.on_settled(state, action)
        ask(state, 1, number + 1, 2)
    assert len(state.timers) <= 3 and not state.sessions[7].claims


@pytest.mark.parametrize("unsent_bytes, claims", [(0, True), (63_000_000, True), (63_000_001, False)])
def test_claims_stop_while_too_many_payload_bytes_are_unwritten(unsent_bytes, claims):
    assert (assignment.next_claim(waiting(), unsent_bytes, NOW) is not None) is claims


def test_expired_session_makes_no_claim():
    assert assignment.next_claim(waiting(), 0, NOW + 30) is None


@pytest.mark.parametrize(
    "found",
    [[a.Found(0)], [a.Found(41, jobs(11))], [a.Found(a.STALE)]],
    ids=["nothing", "jobs", "stale"],
)
@pytest.mark.parametrize("meanwhile", ["nothing", "taken back", "break", "resume", "takeover", "drain"])
def test_each_answer_to_a_claim_after_each_concurrent_event(found, meanwhile):
    state, claim = claiming()
    if meanwhile == "taken back":
        assert ask(state, 1, 1, 0) == [], "the answer to the claim serves this Ready"
    elif meanwhile == "break":
        sessions.on_break(state, 1, NOW)
    elif meanwhile == "resume":
        sessions.on_connect(state, 2, NOW)
        sessions.on_hello(state, 2, sessions.Hello("p", 7), NOW)
        sessions.on_opened(state, 2, opened(7, 2), NOW, NOW)
    elif meanwhile == "takeover":
        sessions.on_taken_over(state, 7, 1, NOW)
    elif meanwhile == "drain":
        sessions.on_drain(state, 9.0)
    actions = assignment.on_claimed(state, claim, found, NOW)
    released = [a.Release(7, 107, refs(41, 11))]
    token = found[0].token
    if token == a.STALE:
        assert (7 in state.sessions) is (meanwhile == "resume"), "the answer concerns the earlier attachment"
        assert ends(1, Status.ABORTED, actions) is (meanwhile in ("nothing", "taken back", "drain"))
    elif meanwhile in ("break", "resume", "takeover"):
        assert actions == (released if token else []), "the stream of the answer is gone"
    elif token:
        assert actions == [a.SendTasks(1, 1, 41)]
    else:
        assert actions == ([] if meanwhile == "nothing" else [a.SendTasks(1, 1, 0)])


def test_stale_session_does_not_delay_other_sessions():
    state = streams(2)
    ask(state, 1, 1)
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    ask(state, 2, 1)
    assert ends(1, Status.ABORTED, assignment.on_claimed(state, claim, [a.Found(a.STALE)], NOW))
    assert shares(assignment.next_claim(state, 0, NOW)) == [(2, 1, 1)]


def test_failed_claim_is_checked_for_unacknowledged_jobs_before_the_next_claim():
    state, claim = claiming()
    assert assignment.on_claim_failed(state, claim, NOW) == []
    assert assignment.next_claim(state, 0, NOW) is None
    assert deadlines.due(state, NOW) == [a.ReleaseUnacknowledged(7, 107, 1, ())]
    assert deadlines.due(state, NOW + 1) == []
    sessions.on_checked(state, 7, 1, NOW + 1)
    assert shares(assignment.next_claim(state, 0, NOW + 1)) == [(1, 1, 2)]


def test_ready_withdrawn_during_a_failed_claim_is_answered_as_empty():
    state, claim = claiming()
    ask(state, 1, 1, 0)
    assert assignment.on_claim_failed(state, claim, NOW) == [a.SendTasks(1, 1, 0)]


def test_withdrawal_answers_a_waiting_ready_at_once_and_ignores_an_answered_one():
    state = waiting()
    assert ask(state, 1, 1, 0) == [a.SendTasks(1, 1, 0)]
    assert ask(state, 1, 1, 0) == [] and not state.groups
    assert ends(1, Status.INVALID_ARGUMENT, ask(state, 1, 1, 2))


@pytest.mark.parametrize("count, size", [(0, 1), (1, 1), (500, 500), (501, 500)])
def test_count_of_a_ready_is_limited_to_1_through_500(count, size):
    state = streams(1)
    ask(state, 1, 1, count)
    assert shares(assignment.next_claim(state, 0, NOW)) == [(1, 1, size)]


def test_ready_over_the_slot_limit_ends_the_stream_but_reported_tasks_use_no_slot():
    state = out()
    assert ask(state, 1, 2, 6) == []
    tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    assert ask(state, 1, 3, 1) == []
    assert ends(1, Status.RESOURCE_EXHAUSTED, ask(state, 1, 4, 1))


def test_too_many_readys_end_only_their_own_stream():
    state = streams(2, slots=64)
    found = [ask(state, 1, number) for number in range(1, 100)]
    assert ends(1, Status.RESOURCE_EXHAUSTED, found[64]) and not any(found[:64]) and not any(found[65:])
    assert list(state.streams) == [2]


@pytest.mark.parametrize(
    "lease, expected", [(0.0, 60.0), (-1.0, 60.0), (float("nan"), 60.0), (5.0, 5.0), (600.0, 600.0)]
)
def test_task_lease_counts_from_the_time_its_batch_is_sent(lease, expected):
    state = open_stream()
    assignment.on_ready(state, 1, 1, ANY, 1, lease=lease, now=NOW)
    claim = assignment.next_claim(state, 0, NOW)
    assert claim is not None
    assignment.on_claimed(state, claim, [a.Found(41, jobs(11))], NOW)
    assignment.on_handed(state, 1, 1, NOW + 3)
    assert state.sessions[7].claims[41][11].deadline == NOW + 3 + expected


def test_ready_of_a_broken_stream_is_ignored():
    state = lingering()
    assert ask(state, 1, 2) == [] and not state.groups
    assert assignment.next_claim(state, 0, NOW) is None and not assignment.is_idle(state, NOW)
