"""Tests streams and sessions: connect, Hello, break, resume, renewal, takeover, drain."""

from __future__ import annotations

import pytest

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, deadlines, sessions, tasks
from jobherd.workers.gateway.actions import Reason, Status
from jobherd.workers.gateway.state import NEVER, State
from tests.workers.gateway.standing import (
    ANY,
    LIMITS,
    NOW,
    claiming,
    connected,
    ends,
    jobs,
    lingering,
    open_stream,
    opened,
    opening,
    out,
    refs,
    unsent,
    waiting,
)

STATES = {
    "unknown": lambda: State(LIMITS),
    "connected": connected,
    "opening": opening,
    "open": open_stream,
    "waiting": waiting,
    "claiming": lambda: claiming()[0],
    "unsent": unsent,
    "out": out,
    "lingering": lingering,
}
UNSENT = [a.Release(7, 107, refs(41, 11, 12))]
ENDED = "ended"


@pytest.mark.parametrize(
    "event, expected",
    {
        "hello": {
            "connected": [a.OpenSession(1, "p")],
            "opening": Status.FAILED_PRECONDITION,
            "open": Status.FAILED_PRECONDITION,
            "waiting": Status.FAILED_PRECONDITION,
            "claiming": Status.FAILED_PRECONDITION,
            "unsent": Status.FAILED_PRECONDITION,
            "out": Status.FAILED_PRECONDITION,
        },
        "ready": {"unsent": [], "out": []},
        "results": {name: [a.Settle(1, 5, 7, 107, refs(41, 11))] for name in ("open", "waiting", "claiming", "unsent", "out")},
        "heartbeat": {
            **{name: [a.SendHeartbeatAck(1, 3, refs(41, 11), 30.0)] for name in ("open", "waiting", "claiming")},
            **{name: [a.SendHeartbeatAck(1, 3, (), 30.0)] for name in ("unsent", "out")},
        },
        "release": {"out": [a.Release(7, 107, refs(41, 11, 12))]},
        "break": {"unsent": UNSENT},
        "cancel": {"out": [a.CancelTask(1, a.TaskRef(11, 41), Reason.CANCELLED)]},
        "relieve": {name: [a.SendReleaseRest(1)] for name in ("open", "waiting", "claiming", "unsent", "out")},
        "drain": {
            **{name: [a.SendDrain(1, 9.0)] for name in ("open", "claiming", "unsent", "out")},
            "waiting": [a.SendTasks(1, 1, 0), a.SendDrain(1, 9.0)],
        },
        "violation": dict.fromkeys(("connected", "opening", "open", "waiting", "claiming", "unsent", "out"), Status.INVALID_ARGUMENT),
        "taken over": dict.fromkeys(("open", "waiting", "claiming", "unsent", "out"), Status.ABORTED),
        "ended": dict.fromkeys(("open", "waiting", "claiming", "unsent", "out"), Status.ABORTED),
        "an earlier attachment was taken over": {},
        "written": {},
    }.items(),
)  # fmt: skip
@pytest.mark.parametrize("name", STATES)
def test_every_event_in_every_state(event, expected, name):
    state = STATES[name]()
    found = {
        "hello": lambda: sessions.on_hello(state, 1, sessions.Hello("p"), NOW),
        "ready": lambda: assignment.on_ready(state, 1, 2, ANY, 1, lease=5.0, now=NOW),
        "results": lambda: tasks.on_results(state, 1, 5, refs(41, 11), NOW),
        "heartbeat": lambda: tasks.on_heartbeat(state, 1, 3, refs(41, 11), extend=9.0, now=NOW),
        "release": lambda: tasks.on_release(state, 1, 41, 0),
        "break": lambda: sessions.on_break(state, 1, NOW),
        "cancel": lambda: tasks.on_cancel(state, 7, a.TaskRef(11, 41)),
        "relieve": lambda: sessions.on_gates_changed(state),
        "drain": lambda: sessions.on_drain(state, 9.0),
        "violation": lambda: sessions.on_violation(state, 1, Status.INVALID_ARGUMENT, "", NOW),
        "taken over": lambda: sessions.on_taken_over(state, 7, 1, NOW),
        "ended": lambda: sessions.on_ended(state, 7, 1, NOW),
        "an earlier attachment was taken over": lambda: sessions.on_taken_over(state, 7, 0, NOW),
        "written": lambda: assignment.on_written(state, 1, 1) or [],
    }[event]()
    wanted = expected.get(name, [])
    if isinstance(wanted, Status):
        assert ends(1, wanted, found) and 1 not in state.streams
        lost = event in ("taken over", "ended")
        assert found[1:] == (UNSENT if name == "unsent" and not lost else [])
        assert not lost or 7 not in state.sessions
    else:
        assert found == wanted


def test_stream_without_hello_ends_after_five_seconds():
    state = connected()
    assert deadlines.wake_at(state, NOW) == NOW + 5 and deadlines.due(state, NOW + 4.9) == []
    assert ends(1, Status.DEADLINE_EXCEEDED, deadlines.due(state, NOW + 5))
    assert deadlines.wake_at(state, NOW + 5) == NEVER


def test_stream_over_the_limit_is_rejected_and_earlier_streams_are_kept():
    state = State(LIMITS)
    found = [sessions.on_connect(state, number, NOW) for number in range(1, 6)]
    assert [len(one) for one in found] == [0, 0, 0, 1, 1] and ends(4, Status.RESOURCE_EXHAUSTED, found[3])
    assert list(state.streams) == [1, 2, 3]


def test_session_without_a_stream_ends_after_its_linger_time():
    state = lingering()
    assert deadlines.due(state, NOW + 4.9) == []
    assert deadlines.due(state, NOW + 5) == [a.EndSession(7, 1)]
    assert deadlines.due(state, NOW + 9) == []
    assert sessions.on_ended(state, 7, 1, NOW + 9) == [] and not state.sessions


def test_unary_call_keeps_a_session_without_a_stream_for_one_lease():
    state = lingering()
    sessions.on_sign_of_life(state, 7, NOW + 4)
    assert deadlines.due(state, NOW + 33) == [a.RenewSessions(((7, 1),))]
    assert deadlines.due(state, NOW + 34) == [a.EndSession(7, 1)]


def resume(state: State, held: tuple[a.TaskRef, ...] = (), principal: str = "p") -> list[a.Action]:
    sessions.on_connect(state, 2, NOW + 1)
    return sessions.on_hello(state, 2, sessions.Hello(principal, 7, held), NOW + 1)


def test_resume_reports_lost_tasks_and_keeps_deadlines_and_cancellations():
    state = out()
    tasks.on_heartbeat(state, 1, 1, refs(41, 12), extend=500.0, now=NOW)
    sessions.on_break(state, 1, NOW)
    assert tasks.on_cancel(state, 7, a.TaskRef(12, 41)) == []
    held = refs(41, 11, 12)
    assert resume(state, held) == [a.AttachSession(2, 7, "p", held)]
    found = sessions.on_opened(state, 2, opened(7, 2, {41: jobs(12)}), NOW + 1, NOW + 2)
    assert found == [
        a.Welcome(2, 7, refs(41, 11), 29.0),
        a.CancelTask(2, a.TaskRef(12, 41), Reason.CANCELLED),
        a.SendReleaseRest(2),
    ]
    assert state.sessions[7].claims[41][12].deadline == NOW + 500
    assert state.sessions[7].out == 1
    assert deadlines.due(state, NOW + 6) == [a.ReleaseUnacknowledged(7, 107, 2, (41,))], (
        "the session no longer lingers, but its claims are checked"
    )


def test_resume_ends_the_earlier_stream_before_the_session_is_attached():
    state = unsent()
    found = resume(state)
    assert ends(1, Status.ABORTED, found) and found[1:] == [*UNSENT, a.AttachSession(2, 7, "p", ())]
    assert deadlines.due(state, NOW + 20) == [a.RenewSessions(((7, 1),))], "the session does not linger meanwhile"


def test_another_principal_cannot_resume_the_session():
    state = out()
    assert ends(2, Status.PERMISSION_DENIED, resume(state, principal="q"))
    assert state.sessions[7].stream == 1 and 1 in state.streams


def test_late_answer_to_an_earlier_attach_does_not_undo_a_later_attach():
    state = lingering()
    resume(state)
    sessions.on_connect(state, 3, NOW + 1)
    sessions.on_hello(state, 3, sessions.Hello("p", 7), NOW + 1)
    assert sessions.on_opened(state, 3, opened(7, 3), NOW + 1, NOW + 1)[0] == a.Welcome(3, 7, (), 30.0)
    assert ends(2, Status.ABORTED, sessions.on_opened(state, 2, opened(7, 2), NOW + 1, NOW + 1))
    assert state.sessions[7].attached == 3 and state.sessions[7].stream == 3


def test_later_attach_ends_the_stream_of_an_earlier_one():
    state = lingering()
    resume(state)
    sessions.on_connect(state, 3, NOW + 1)
    sessions.on_hello(state, 3, sessions.Hello("p", 7), NOW + 1)
    sessions.on_opened(state, 2, opened(7, 2), NOW + 1, NOW + 1)
    found = sessions.on_opened(state, 3, opened(7, 3), NOW + 1, NOW + 1)
    assert ends(2, Status.ABORTED, found) and state.sessions[7].stream == 3


def test_session_lingers_if_its_stream_broke_before_it_was_opened():
    state = opening()
    sessions.on_break(state, 1, NOW)
    assert sessions.on_opened(state, 1, opened(), NOW, NOW + 1) == []
    assert deadlines.due(state, NOW + 6) == [a.EndSession(7, 1)]


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.UNAVAILABLE])
def test_failed_resume_removes_the_session_only_if_it_was_not_found(status):
    state = lingering()
    resume(state)
    assert ends(2, status, sessions.on_not_opened(state, 2, status, "", NOW + 1))
    assert (7 in state.sessions) is (status is Status.UNAVAILABLE)
    assert deadlines.due(state, NOW + 6) == ([] if status is Status.NOT_FOUND else [a.EndSession(7, 1)])


def test_resume_keeps_a_pending_result_and_drops_a_pending_expiry():
    state = out()
    tasks.on_results(state, 1, 1, refs(41, 11), NOW)
    lapse = a.ExpireTasks(7, 107, 1, refs(41, 12))
    assert lapse in deadlines.due(state, NOW + 60)
    sessions.on_break(state, 1, NOW + 60)
    resume(state, refs(41, 11, 12))
    sessions.on_opened(state, 2, opened(7, 2, {41: jobs(11, 12)}), NOW + 61, NOW + 61)
    assert state.sessions[7].out == 1
    assert sessions.on_taken_over(state, 7, 1, NOW + 61) == [], (
        "the expiry failed because the session is attached again"
    )
    assert tasks.on_expired(state, lapse, {}, NOW + 61) == []
    assert state.sessions[7].claims[41][12].state.counts


def test_session_lease_is_renewed_after_each_third_of_its_duration():
    state = open_stream()
    assert deadlines.wake_at(state, NOW) == NOW + 5, "the timer of the Hello fires without effect"
    assert deadlines.due(state, NOW + 5) == [] and deadlines.wake_at(state, NOW + 5) == NOW + 10
    asked = a.RenewSessions(((7, 1),))
    assert deadlines.due(state, NOW + 10) == [asked]
    assert deadlines.due(state, NOW + 20) == [], "one renewal at a time"
    assert sessions.on_renewed(state, asked, {7}, NOW + 10, NOW + 21) == []
    assert state.sessions[7].lease_until == NOW + 40, "counted from the sending"
    assert deadlines.due(state, NOW + 30) == [asked]
    sessions.on_renewal_failed(state)
    assert deadlines.due(state, NOW + 40) == [asked]
    assert ends(1, Status.ABORTED, sessions.on_renewed(state, asked, set(), NOW + 40, NOW + 41))
    assert not state.sessions and deadlines.due(state, NOW + 60) == [] and deadlines.wake_at(state, NOW) == NEVER


def test_check_for_unacknowledged_jobs_and_claims_wait_for_each_other():
    state = lingering()
    resume(state)
    sessions.on_opened(state, 2, opened(7, 2), NOW + 1, NOW + 1)
    assignment.on_ready(state, 2, 1, ANY, 1, lease=0.0, now=NOW + 1)
    claim = assignment.next_claim(state, 0, NOW + 1)
    assert claim is not None
    assert deadlines.due(state, NOW + 2.5) == [], "the check would release the jobs of the running claim"
    assignment.on_claimed(state, claim, [a.Found(0)], NOW + 3)
    assignment.on_wake(state)
    assert assignment.next_claim(state, 0, NOW + 3) is None
    assert deadlines.due(state, NOW + 3) == [a.ReleaseUnacknowledged(7, 107, 2, ())]
    assert assignment.next_claim(state, 0, NOW + 3) is None
    sessions.on_checked(state, 7, 2, NOW + 4)
    assert assignment.next_claim(state, 0, NOW + 4) is not None


def test_draining_gateway_accepts_no_stream_and_no_hello():
    state = connected()
    assert sessions.on_drain(state, 9.0) == []
    assert ends(1, Status.UNAVAILABLE, sessions.on_hello(state, 1, sessions.Hello("p"), NOW))
    assert ends(2, Status.UNAVAILABLE, sessions.on_connect(state, 2, NOW))


def test_stream_that_opens_during_a_drain_is_notified_of_it():
    state = opening()
    sessions.on_drain(state, 9.0)
    assert sessions.on_opened(state, 1, opened(), NOW, NOW) == [a.Welcome(1, 7, (), 30.0), a.SendDrain(1, 9.0)]


def test_gateway_is_drained_once_no_task_is_out():
    state = out()
    assert not sessions.is_drained(state)
    sessions.on_drain(state, 9.0)
    assert not sessions.is_drained(state)
    [settle] = tasks.on_results(state, 1, 1, refs(41, 11, 12), NOW)
    assert not sessions.is_drained(state), "the results are not committed"
    assert tasks.on_settled(state, settle) == [a.SendAck(1, 1)]
    assert sessions.is_drained(state)


def test_drain_ends_soon_after_its_workers_have_moved_to_another_gateway():
    state = out()
    sessions.on_drain(state, 9.0)
    sessions.on_break(state, 1, NOW)
    asked = a.RenewSessions(((7, 1),))
    for second in (1, 2):
        assert deadlines.wake_at(state, NOW + second - 1) == NOW + second
        assert deadlines.due(state, NOW + second) == [asked]
        assert not sessions.is_drained(state)
        gone = second == 2
        sessions.on_renewed(state, asked, set() if gone else {7}, NOW + second, NOW + second)
    assert sessions.is_drained(state)


def test_drain_also_answers_the_ready_of_a_running_claim():
    state, claim = claiming()
    sessions.on_drain(state, 9.0)
    assert not sessions.is_drained(state)
    assert assignment.on_claimed(state, claim, [a.Found(0)], NOW) == [a.SendTasks(1, 1, 0)]
    assert sessions.is_drained(state)
    assert assignment.on_ready(state, 1, 2, ANY, 1, lease=0.0, now=NOW) == [a.SendTasks(1, 2, 0)]
