"""Tests the session state that only an uplink has. For the state of all remote workers, see test_client_state."""

from __future__ import annotations

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.events import Ref, ResultsConfirmed
from jobherd.workers.uplink.session_state import SessionState


def opened(state):
    state.hello()
    ack = m.HelloAck(session="7", max_slots=100, session_seconds=30.0)
    state.on_response(m.WorkResponse(hello_ack=ack), 0.0)


def requests(state, now=0.0):
    found = []
    while (request := state.next_request(now)) is not None:
        found.append(request)
    return found


def ref(task, claim=1):
    return m.TaskRef(task_id=task, claim=claim)


def done(task):
    return m.Result(task_id=task, claim=1, completed=m.Completed())


def test_session_of_a_process_that_died_is_resumed_with_its_tasks():
    state = SessionState(m.Hello())
    state.restore("7", [Ref(5, 1), Ref(6, 1)])
    hello = state.hello()
    assert (hello.session, list(hello.held)) == ("7", [ref(5), ref(6)])
    opened(state)
    state.report(done(5), 0.0)
    state.report(done(6), 0.0)
    assert len(requests(state)) == 1
    confirmed = state.on_response(m.WorkResponse(result_ack=m.ResultAck(up_to=1)), 0.0)
    assert confirmed == [ResultsConfirmed([Ref(5, 1), Ref(6, 1)])]
    assert state.is_settled


def test_later_declaration_takes_effect_with_the_next_stream():
    state = SessionState(m.Hello(kinds=[m.KindPolicy(kind="a")]))
    state.declare([m.KindPolicy(kind="b", max_attempts=3)])
    assert list(state.hello().kinds) == [m.KindPolicy(kind="b", max_attempts=3)]


def test_progress_is_sent_before_the_result_and_only_the_latest():
    state = SessionState(m.Hello())
    state.restore("7", [Ref(5, 1)])
    opened(state)
    for fraction in (0.25, 0.5):
        state.tell_progress(m.Progress(task=ref(5), fraction=fraction))
    state.tell_progress(m.Progress(task=ref(6), fraction=0.5))
    state.report(done(5), 0.0)
    sent = requests(state)
    assert [one.WhichOneof("event") for one in sent] == ["progress", "results"]
    assert sent[0].progress.fraction == 0.5


def test_unsent_progress_is_dropped_when_the_stream_breaks():
    state = SessionState(m.Hello())
    state.restore("7", [Ref(5, 1)])
    opened(state)
    state.tell_progress(m.Progress(task=ref(5), fraction=0.5))
    state.on_break()
    opened(state)
    assert requests(state) == []


def test_heartbeat_is_sent_on_request():
    state = SessionState(m.Hello())
    opened(state)
    assert requests(state) == []
    state.beat()
    assert [one.WhichOneof("event") for one in requests(state)] == ["heartbeat"]
