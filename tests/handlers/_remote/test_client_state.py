"""The state that a remote worker keeps of its session, tested against a gateway made of a few dicts."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.client_state import MOST_UNCONFIRMED, ClientState
from jobherd.handlers._remote.events import (
    ReadyAnswered,
    ReadyRejected,
    Ref,
    ReleaseRequested,
    ResultRejected,
    ResultsConfirmed,
    Stop,
    TaskStopped,
)
from jobherd.handlers._remote.held_tasks import BATCH_BYTES, LONGEST_WAIT

LOST = m.Refusal.REASON_LOST


def opened(*, session="7", slots=100, lost=(), seconds=30.0, state=None, now=0.0):
    state = state or ClientState(m.Hello(token="secret", worker_id="here"))
    state.hello()
    ack = m.HelloAck(session=session, max_slots=slots, session_seconds=seconds, lost=lost)
    return state, state.on_response(m.WorkResponse(hello_ack=ack), now)


def ask(state, count=1):
    return state.ask(kinds=["a"], queues=[], count=count, lease=60.0)


def requests(state, now=0.0):
    found = []
    while (request := state.next_request(now)) is not None:
        found.append(request)
    return found


def give(state, number, *ids, claim=1, ack=None):
    batch = m.TaskBatch(ready=number, tasks=[m.Task(id=one, claim=claim) for one in ids], ack=ack)
    return state.on_response(m.WorkResponse(tasks=batch), 0.0)


def holding(*ids, claim=1, **options):
    state, _ = opened(**options)
    number = ask(state, len(ids))
    requests(state)
    give(state, number, *ids, claim=claim)
    return state


def done(task, claim=1, **fields):
    return m.Result(task_id=task, claim=claim, **(fields or {"completed": m.Completed()}))


def confirm(state, up_to, *refusals):
    return state.on_response(m.WorkResponse(result_ack=m.ResultAck(up_to=up_to, refusals=refusals)), 0.0)


def ref(task, claim=1):
    return m.TaskRef(task_id=task, claim=claim)


def held(state):
    return [(one.task_id, one.claim) for one in state.hello().held]


def test_first_hello_has_the_declared_fields_and_no_session():
    hello = ClientState(m.Hello(token="secret", worker_id="here")).hello()
    assert hello == m.Hello(token="secret", worker_id="here")


def test_client_sends_nothing_before_the_gateway_accepts_the_worker():
    state = ClientState(m.Hello())
    ask(state)
    assert requests(state, 1e9) == []
    assert state.wake_at() == float("inf")


def test_gateway_answers_a_ready_with_tasks():
    state, _ = opened()
    number = ask(state, 2)
    assert requests(state) == [m.WorkRequest(ready=m.Ready(number=number, kinds=["a"], count=2, lease_seconds=60))]
    (event,) = give(state, number, 5, 6)
    assert (event.number, [task.id for task in event.tasks]) == (number, [5, 6])
    assert held(state) == [(5, 1), (6, 1)]


def test_tasks_for_an_unknown_ready_are_released():
    state, _ = opened()
    assert give(state, 99, 5, 6) == []
    assert requests(state) == [m.WorkRequest(release=m.Release(claim=1))]
    assert state.is_settled


def test_unsent_ready_is_withdrawn_at_once():
    state, _ = opened()
    number = ask(state)
    assert state.take_back(number) == [ReadyAnswered(number)]
    assert requests(state) == []
    assert state.take_back(number) == []


def test_sent_ready_is_withdrawn_by_one_message():
    state, _ = opened()
    number = ask(state)
    requests(state)
    assert state.take_back(number) == state.take_back(number) == []
    assert requests(state) == [m.WorkRequest(ready=m.Ready(number=number))]
    (event,) = give(state, number)
    assert (event.number, len(event.tasks)) == (number, 0)


def test_broken_stream_answers_withdrawn_readys_and_repeats_the_others():
    state, _ = opened()
    kept, withdrawn, unsent = ask(state), ask(state), None
    requests(state)
    state.take_back(withdrawn)
    unsent = ask(state)
    assert state.on_break() == [ReadyAnswered(withdrawn)]
    opened(state=state)
    assert [one.ready.number for one in requests(state)] == [kept, unsent]


def test_rejected_ready_is_answered_without_tasks_and_reported_once():
    state, _ = opened()
    number = ask(state)
    requests(state)
    refusal = m.Refusal(reason=m.Refusal.REASON_NOT_ALLOWED, ready=number, message="not yours")
    assert state.on_response(m.WorkResponse(refusal=refusal), 0.0) == [
        ReadyAnswered(number),
        ReadyRejected("not yours"),
    ]
    assert state.on_response(m.WorkResponse(refusal=refusal), 0.0) == []


def test_client_requests_no_more_tasks_than_max_slots():
    state, _ = opened(slots=3)
    first, second = ask(state, 2), ask(state, 2)
    ask(state)
    assert [one.ready.count for one in requests(state)] == [2, 1]
    give(state, first, 5)
    assert [one.ready.count for one in requests(state)] == [1]
    give(state, second)
    state.report(done(5), 0.0)
    confirmed = requests(state)
    assert [one.WhichOneof("event") for one in confirmed] == ["results"]
    confirm(state, 1)
    assert state.is_settled


def test_results_of_a_whole_claim_are_sent_at_once_with_the_next_ready():
    state = holding(5, 6)
    assert state.report(done(5), 0.0)
    assert requests(state) == []
    assert state.wake_at() == LONGEST_WAIT
    assert state.report(done(6), 0.01)
    number = ask(state)
    (request,) = requests(state, 0.01)
    assert [one.task_id for one in request.results.results] == [5, 6]
    assert (request.results.number, request.results.ready.number) == (1, number)


def test_result_waits_a_limited_time_for_the_rest_of_its_claim():
    state = holding(5, 6)
    state.report(done(5), 1.0)
    assert requests(state, 1.0 + LONGEST_WAIT / 2) == []
    (request,) = requests(state, 1.0 + LONGEST_WAIT)
    assert [one.task_id for one in request.results.results] == [5]
    state.report(done(6), 2.0)
    (request,) = requests(state, 2.0)
    assert ([one.task_id for one in request.results.results], request.results.number) == ([6], 2)


def test_task_is_held_until_its_result_is_confirmed():
    state = holding(5)
    state.report(done(5), 0.0)
    assert not state.report(done(5), 0.0), "a task has one result"
    requests(state)
    assert held(state) == [(5, 1)]
    assert not state.is_settled
    assert confirm(state, 1) == [ResultsConfirmed([Ref(5, 1)])]
    assert state.is_settled


def test_acknowledgement_may_arrive_with_tasks():
    state = holding(5)
    state.report(done(5), 0.0)
    number = ask(state)
    requests(state)
    give(state, number, 8, claim=2, ack=m.ResultAck(up_to=1))
    assert held(state) == [(8, 2)]


def test_unconfirmed_results_are_sent_again_before_later_ones():
    state = holding(5, 6, 7)
    for task, now in ((5, 0.0), (6, 1.0)):
        state.report(done(task), now)
        assert len(requests(state, now + LONGEST_WAIT)) == 1
    state.on_break()
    state.report(done(7), 2.0)
    assert held(state) == [(5, 1), (6, 1), (7, 1)]
    opened(state=state)
    (request,) = requests(state, 2.0)
    assert ([one.task_id for one in request.results.results], request.results.number) == ([5, 6, 7], 1)
    confirm(state, 1)
    assert state.is_settled


def test_result_batches_stay_below_the_message_limit():
    state = holding(5, 6, 7)
    for task in (5, 6, 7):
        state.report(done(task, completed=m.Completed(result=b'"' + b"x" * (BATCH_BYTES // 2) + b'"')), 0.0)
    assert [len(one.results.results) for one in requests(state)] == [1, 1, 1]


def test_too_many_unconfirmed_batches_delay_results_and_readys():
    state, _ = opened(slots=0)
    for number in range(1, MOST_UNCONFIRMED + 2):
        ready = ask(state)
        requests(state)
        give(state, ready, number, claim=number)
        state.report(done(number, claim=number), 0.0)
        requests(state)
    ready = ask(state)
    assert requests(state) == []
    confirm(state, 1)
    (request,) = requests(state)
    assert (request.results.number, request.results.ready.number) == (MOST_UNCONFIRMED + 1, ready)


def test_result_of_a_lost_task_is_reported_and_dropped():
    state = holding(5)
    state.report(done(5), 0.0)
    requests(state)
    events = confirm(state, 1, m.Refusal(reason=LOST, task=ref(5), message="too late"))
    assert events == [ResultRejected(done(5), False, "too late", lost=True)]
    assert state.is_settled


def test_task_with_an_invalid_result_accepts_another_result():
    state = holding(5)
    state.report(m.Result(task_id=5, claim=1), 0.0)
    requests(state)
    (event,) = confirm(state, 1, m.Refusal(reason=m.Refusal.REASON_INVALID, task=ref(5), message="no outcome"))
    assert event.again
    assert state.report(done(5), 0.0)
    assert len(requests(state)) == 1
    confirm(state, 2)
    assert state.is_settled


def test_release_names_the_running_task_and_is_sent_after_earlier_results():
    state = holding(5, 6, 7, 8)
    state.report(done(5), 0.0)
    state.release(1, behind=6)
    sent = requests(state)
    assert [one.WhichOneof("event") for one in sent] == ["results", "release"]
    assert sent[1].release == m.Release(claim=1, behind_task_id=6)
    assert held(state) == [(6, 1), (5, 1)]
    assert not state.report(done(7), 0.0)


def test_release_without_unstarted_tasks_sends_nothing():
    state = holding(5)
    state.release(1, behind=5)
    state.release(2)
    state.release(1, behind=99)
    assert requests(state) == []
    state.report(done(5), 0.0)
    assert len(requests(state)) == 1


def test_release_is_not_repeated_after_a_break():
    state = holding(5)
    state.release(1)
    state.on_break()
    assert opened(state=state)[1] == []
    assert requests(state) == []


def test_extensions_of_the_same_length_share_a_heartbeat():
    state = holding(5, 6, 7)
    for task, seconds in ((5, 60.0), (6, 60.0), (7, 10.0)):
        assert state.extend(Ref(task, 1), seconds)
    sent = [one.heartbeat for one in requests(state, 1.0)]
    assert [([t.task_id for t in one.tasks], one.extend_seconds) for one in sent] == [([5, 6], 60.0), ([7], 10.0)]
    assert [one.number for one in sent] == [1, 2]
    assert not state.extend(Ref(9, 1), 60.0)


def test_unanswered_extension_is_sent_again_unless_its_task_is_reported():
    state = holding(5, 6)
    state.extend(Ref(5, 1), 60.0)
    state.extend(Ref(6, 1), 60.0)
    requests(state)
    state.report(done(6), 0.0)
    state.on_break()
    opened(state=state)
    (beat,) = [one.heartbeat for one in requests(state) if one.WhichOneof("event") == "heartbeat"]
    assert list(beat.tasks) == [ref(5)]


def test_idle_worker_sends_a_heartbeat_each_third_of_the_session():
    state, _ = opened(seconds=30.0, now=100.0)
    assert state.wake_at() == 110.0
    assert requests(state, 109.0) == []
    assert requests(state, 110.0) == [m.WorkRequest(heartbeat=m.Heartbeat(number=1))]
    assert state.wake_at() == 120.0


def test_tiny_session_time_does_not_cause_endless_heartbeats():
    state = ClientState(m.Hello())
    state.hello()
    state.on_response(m.WorkResponse(hello_ack=m.HelloAck(session="7", session_seconds=1e-300)), 100.0)
    assert state.next_request(101.0) is not None
    assert state.next_request(101.0) is None


def test_session_deadline_counts_from_the_time_the_heartbeat_was_sent():
    state, _ = opened(seconds=30.0, now=100.0)
    requests(state, 110.0)
    ack = m.HeartbeatAck(number=1, session_seconds=25.0)
    state.on_response(m.WorkResponse(heartbeat_ack=ack), 119.0)
    assert state.session_until == 135.0
    state.on_response(m.WorkResponse(heartbeat_ack=ack), 119.0)
    assert state.session_until == 135.0


def test_lost_tasks_in_a_heartbeat_acknowledgement_are_stopped():
    state = holding(5)
    state.extend(Ref(5, 1), 60.0)
    requests(state)
    ack = m.HeartbeatAck(number=1, lost=[ref(5)])
    assert state.on_response(m.WorkResponse(heartbeat_ack=ack), 0.0) == [TaskStopped(Ref(5, 1), Stop.LOST)]
    assert not state.report(done(5), 0.0)


def test_cancel_stops_only_open_tasks():
    state = holding(5)

    def cancel(task, reason):
        return state.on_response(m.WorkResponse(cancel=m.Cancel(task=ref(task), reason=reason)), 0.0)

    assert cancel(5, m.Cancel.REASON_CANCELLED) == [TaskStopped(Ref(5, 1), Stop.CANCELLED)]
    assert cancel(5, m.Cancel.REASON_TIMEOUT) == [TaskStopped(Ref(5, 1), Stop.TIMEOUT)]
    assert cancel(6, m.Cancel.REASON_CANCELLED) == cancel(5, 99) == []


def test_worker_sends_a_heartbeat_after_a_task_is_lost():
    """Until the heartbeat arrives, the gateway ignores the worker's Readys."""
    state = holding(5)
    cancel = m.Cancel(task=ref(5), reason=m.Cancel.REASON_LOST)
    assert state.on_response(m.WorkResponse(cancel=cancel), 0.0) == [TaskStopped(Ref(5, 1), Stop.LOST)]
    assert requests(state) == [m.WorkRequest(heartbeat=m.Heartbeat(number=1))]
    assert state.is_settled


def test_tasks_lost_during_a_resumed_session_are_stopped():
    state = holding(5, 6)
    state.report(done(6), 0.0)
    state.on_break()
    assert state.hello().session == "7"
    _, events = opened(state=state, lost=[ref(5), ref(6)])
    assert events == [TaskStopped(Ref(5, 1), Stop.LOST), TaskStopped(Ref(6, 1), Stop.LOST)]
    assert requests(state) == []
    assert state.is_settled


def test_new_session_stops_all_tasks_as_lost():
    for end in (lambda s: s.on_session_over(), lambda s: opened(state=s, session="8")[1]):
        state = holding(5, 6)
        state.report(done(5), 0.0)
        state.on_break()
        assert end(state) == [TaskStopped(Ref(6, 1), Stop.LOST), TaskStopped(Ref(5, 1), Stop.LOST)]
        assert state.is_settled
        assert state.hello().session in {"", "8"}


def test_draining_gateway_receives_no_readys_and_the_next_one_does():
    state, _ = opened()
    state.on_response(m.WorkResponse(drain=m.Drain(within_seconds=5)), 0.0)
    number = ask(state)
    assert state.draining
    assert requests(state) == []
    state.on_break()
    opened(state=state)
    assert [one.ready.number for one in requests(state)] == [number]


def test_release_rest_message_requests_a_release():
    state, _ = opened()
    assert state.on_response(m.WorkResponse(release_rest=m.ReleaseRest()), 0.0) == [ReleaseRequested()]
    assert state.on_response(m.WorkResponse(), 0.0) == []


SLOTS = 12


class Session(RuleBasedStateMachine):
    """One session over many streams. Messages wait in two queues; a break loses both.

    For the gateway, each task is in one of three sets: out at the worker, recorded, or returned.
    """

    @initialize()
    def begin(self):
        self.now, self.state = 0.0, ClientState(m.Hello())
        self.session, self.next_session, self.up = "", 1, False
        self.out, self.recorded, self.back = set(), set(), set()
        self.up_queue, self.down_queue = deque(), deque()
        self.waiting, self.asked, self.answered = {}, set(), {}
        self.open, self.reported, self.lost, self.released = {}, set(), set(), set()
        self.job = self.claim = self.extended = 0

    # The gateway.

    def take(self, events):
        for event in events:
            match event:
                case ReadyAnswered(number, tasks):
                    assert number not in self.answered, "a Ready was answered twice"
                    self.answered[number] = len(tasks)
                    if tasks:
                        self.open[tasks[0].claim] = [task.id for task in tasks]
                case TaskStopped(stopped, Stop.LOST) if stopped.task in self.open.get(stopped.claim, ()):
                    self.lost.add(stopped)
                    self.open[stopped.claim].remove(stopped.task)

    @precondition(lambda self: not self.up)
    @rule(over=st.booleans())
    def connect(self, over):
        if over and self.session:
            self.back |= self.out
            self.out, self.session = set(), ""
            self.take(self.state.on_session_over())
        hello = self.state.hello()
        held_now = {Ref(one.task_id, one.claim) for one in hello.held}
        if not hello.session:  # new session, or its HelloAck was lost: then no worker has its tasks
            assert not held_now
            self.back |= self.out
            self.out = set()
            self.session, self.next_session = str(self.next_session), self.next_session + 1
        else:
            assert hello.session == self.session
            self.back |= self.out - held_now
            self.out &= held_now
        lost = [ref(*one) for one in held_now - self.out]
        self.up, self.waiting, self.batch = True, {}, 0
        self.down_queue.append(m.WorkResponse(hello_ack=m.HelloAck(session=self.session, max_slots=SLOTS, lost=lost)))

    @precondition(lambda self: self.up)
    @rule()
    def gateway_reads(self):
        if not self.up_queue:
            return
        request = self.up_queue.popleft()
        kind = request.WhichOneof("event")
        if kind == "results":
            assert request.results.number == self.batch + 1
            self.batch += 1
            refusals = []
            for result in request.results.results:
                one = Ref(result.task_id, result.claim)
                if one in self.out:
                    self.out.remove(one)
                    self.recorded.add(one)
                elif one not in self.recorded:
                    refusals.append(m.Refusal(reason=LOST, task=ref(*one)))
            self.down_queue.append(m.WorkResponse(result_ack=m.ResultAck(up_to=self.batch, refusals=refusals)))
        elif kind == "release":
            order = sorted(one for one in self.out | self.recorded | self.back if one.claim == request.release.claim)
            given = {one for one in order if one.task > request.release.behind_task_id} & self.out
            self.back |= given
            self.out -= given
        ready = request.results.ready if request.results.HasField("ready") else request.ready
        if ready.number and ready.count:
            assert ready.number not in self.waiting
            self.waiting[ready.number] = ready.count
            assert sum(self.waiting.values()) + len(self.out) <= SLOTS
        elif ready.number and self.waiting.pop(ready.number, None):
            self.down_queue.append(m.WorkResponse(tasks=m.TaskBatch(ready=ready.number)))

    @precondition(lambda self: self.up)
    @rule(share=st.integers(0, 3))
    def gateway_claims(self, share):
        if not self.waiting:
            return
        number = next(iter(self.waiting))
        count = min(self.waiting.pop(number), share)
        self.claim += 1
        tasks = [m.Task(id=self.job + 1 + one, claim=self.claim) for one in range(count)]
        self.job += count
        self.out |= {Ref(task.id, task.claim) for task in tasks}
        self.down_queue.append(m.WorkResponse(tasks=m.TaskBatch(ready=number, tasks=tasks)))

    @precondition(lambda self: self.up and self.out)
    @rule(data=st.data())
    def lease_lapses(self, data):
        one = data.draw(st.sampled_from(sorted(self.out)))
        self.out.remove(one)
        self.back.add(one)
        self.down_queue.append(m.WorkResponse(cancel=m.Cancel(task=ref(*one), reason=m.Cancel.REASON_LOST)))

    @precondition(lambda self: self.up)
    @rule()
    def breaks(self):
        self.up = False
        self.up_queue.clear()
        self.down_queue.clear()
        self.take(self.state.on_break())

    # The worker.

    @precondition(lambda self: self.up)
    @rule()
    def worker_reads(self):
        if self.down_queue:
            self.take(self.state.on_response(self.down_queue.popleft(), self.now))

    @precondition(lambda self: self.up)
    @rule(later=st.sampled_from([0.0, LONGEST_WAIT]))
    def worker_writes(self, later):
        self.now += later
        request = self.state.next_request(self.now)
        if request is not None:
            self.up_queue.append(request)

    @rule(count=st.integers(1, 5))
    def asks(self, count):
        self.asked.add(ask(self.state, count))

    @rule(data=st.data())
    def takes_back(self, data):
        left = sorted(self.asked - self.answered.keys())
        if left:
            self.take(self.state.take_back(data.draw(st.sampled_from(left))))

    @rule(data=st.data())
    def finishes(self, data):
        claims = sorted(claim for claim, tasks in self.open.items() if tasks)
        if claims:
            claim = data.draw(st.sampled_from(claims))
            task = self.open[claim].pop(0)
            assert self.state.report(done(task, claim), self.now)
            self.reported.add(Ref(task, claim))

    @rule(data=st.data(), running=st.booleans())
    def releases(self, data, running):
        claims = sorted(claim for claim, tasks in self.open.items() if len(tasks) > running)
        if claims:
            claim = data.draw(st.sampled_from(claims))
            behind = self.open[claim][0] if running else 0
            rest = self.open[claim][1:] if running else self.open[claim]
            self.state.release(claim, behind)
            self.released |= {Ref(task, claim) for task in rest}
            self.open[claim] = [behind] if running else []

    @invariant()
    def no_result_is_recorded_that_was_not_reported(self):
        assert self.recorded <= self.reported
        assert not self.recorded & self.back

    @invariant()
    def the_worker_knows_what_it_runs(self):
        running = {Ref(task, claim) for claim, tasks in self.open.items() for task in tasks}
        assert running == set(self.state._tasks.open_tasks())

    def teardown(self):
        if not hasattr(self, "state"):
            return
        for number in sorted(self.asked - self.answered.keys()):
            self.take(self.state.take_back(number))
        if not self.up:
            self.connect(over=False)
        for _ in range(10_000):
            before = len(self.up_queue) + len(self.down_queue)
            self.worker_writes(later=LONGEST_WAIT)
            self.gateway_reads()
            self.worker_reads()
            for claim, tasks in self.open.items():
                for task in tasks:
                    self.state.report(done(task, claim), self.now)
                    self.reported.add(Ref(task, claim))
                tasks.clear()
            if not before and not self.up_queue and not self.down_queue and self.asked == self.answered.keys():
                break
        assert self.state.is_settled
        assert self.asked == self.answered.keys(), "a Ready was not answered"
        assert not self.out, "the gateway waits for a task that no worker has"
        assert self.reported <= self.recorded | self.back, "a result was lost"


Session.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestSession = Session.TestCase
