"""Tests the router between workers and the gateway's stream. The links and the stream only keep lists."""

from __future__ import annotations

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.events import (
    ReadyRejected,
    Ref,
    ReleaseRequested,
    ResultRejected,
    ResultsConfirmed,
    Stop,
    TaskStopped,
)
from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.job.finished import Finished, settlement
from jobherd.workers.uplink.router import UNKNOWN_LEASE, Router
from jobherd.workers.uplink.worker_tasks import NEVER

LOST = m.Refusal.REASON_LOST


class Stream:
    """A stream that keeps the arguments of its calls. `answers` has the callbacks of Readys by number."""

    def __init__(self):
        self.asked, self.answers, self.taken_back = [], {}, []
        self.results, self.progress, self.extended, self.released, self.declared = [], [], [], [], []

    def ask(self, answer, **ready):
        self.asked.append(ready)
        self.answers[len(self.asked)] = answer
        return len(self.asked)

    def take_back(self, number):
        self.taken_back.append(number)

    def report(self, result):
        self.results.append(result)

    def tell_progress(self, report):
        self.progress.append(report)

    def extend(self, ref, seconds):
        self.extended.append((ref, seconds))
        return True

    def release(self, claim, behind=0):
        self.released.append((claim, behind))

    def declare(self, kinds):
        self.declared.append([policy.kind for policy in kinds])


class Link:
    def __init__(self):
        self.child, self.sent, self.closed = 0, [], False

    def send(self, response):
        self.sent.append(response)

    def close(self):
        self.closed = True


class Scene:
    """A router with one worker, number 4, which has sent its Hello."""

    def __init__(self):
        self.stream, self.told, self.answers = Stream(), [], []
        self.router = Router(self.stream, self.told.append, stopping=20.0)
        self.link = self.join(4)
        self.router.has_started = True

    def join(self, child, *held, kinds=("a",)):
        link = Link()
        hello = m.Hello(
            worker_id=str(child),
            kinds=[m.KindPolicy(kind=kind) for kind in kinds],
            held=[m.TaskRef(task_id=ref.task, claim=ref.claim) for ref in held],
        )
        self.router.on_request(link, m.WorkRequest(hello=hello), 0.0)
        assert link.sent.pop(0).HasField("hello_ack")
        return link

    def ready(self, number=1, link=None, count=2):
        ready = m.Ready(number=number, kinds=["a"], queues=["q"], count=count, lease_seconds=30.0)
        self.router.on_request(link or self.link, m.WorkRequest(ready=ready), 0.0)

    def give(self, *ids, claim=9, number=None, **fields):
        tasks = [m.Task(id=one, claim=claim, lease_seconds=30.0, **fields) for one in ids]
        self.stream.answers.pop(number or len(self.stream.asked))(tasks, 100.0)

    def holding(self, *ids, **more):
        self.ready()
        self.give(*ids, **more)
        self.link.sent.clear()
        return self

    def report(self, *ids, number=1, claim=9, link=None):
        results = [m.Result(task_id=one, claim=claim, completed=m.Completed()) for one in ids]
        batch = m.ResultBatch(number=number, results=results)
        self.router.on_request(link or self.link, m.WorkRequest(results=batch), 0.0)

    def ask(self, name, **parameters):
        assert self.router.carry_out(name, parameters, self.answers.append)
        return self.answers

    def settle(self, *finished, token=9):
        values = settlement(4, token, finished, ran_on="here/1", now=1.0)
        return self.ask("settle/settle_jobs", **values)


@pytest.fixture
def scene():
    return Scene()


def refused(response):
    return [(one.task.task_id, one.reason) for one in response.result_ack.refusals]


def test_ready_goes_to_the_gateway_and_its_tasks_to_the_worker_that_sent_it(scene):
    other = scene.join(5)
    scene.ready(number=3)
    scene.ready(number=8, link=other)
    assert scene.stream.asked[0] == {"kinds": ["a"], "queues": ["q"], "count": 2, "lease": 30.0}
    scene.give(21, claim=6, number=2)
    scene.give(11, 12, claim=5, number=1)
    assert [(one.tasks.ready, [task.id for task in one.tasks.tasks]) for one in scene.link.sent] == [(3, [11, 12])]
    assert [(one.tasks.ready, [task.id for task in one.tasks.tasks]) for one in other.sent] == [(8, [21])]
    assert scene.router.waiting == 0


def test_ready_that_is_answered_without_tasks_is_sent_again(scene):
    """A draining gateway answers so. Without a Ready, an idle worker would sleep."""
    scene.ready()
    scene.give()
    assert (len(scene.stream.asked), scene.link.sent) == (2, [])
    scene.give(1)
    assert len(scene.link.sent) == 1


def test_worker_has_at_most_one_waiting_ready(scene):
    scene.ready(number=1)
    scene.ready(number=2)
    assert len(scene.stream.asked) == 1


def test_ready_of_a_disconnected_worker_is_withdrawn_and_its_tasks_are_released(scene):
    scene.ready()
    scene.router.leave(scene.link)
    assert scene.stream.taken_back == [1]
    assert not scene.router.is_settled
    scene.give(1, 2)
    assert scene.stream.released == [(9, 0)]
    assert (scene.link.sent, scene.router.is_settled, scene.router.workers) == ([], True, set())


def test_stopping_router_withdraws_all_readys_and_accepts_no_more(scene):
    scene.ready()
    scene.router.stop_asking()
    scene.give()
    scene.ready(number=2)
    assert (scene.stream.taken_back, len(scene.stream.asked), scene.router.is_settled) == ([1], 1, True)


def test_results_are_acknowledged_when_the_gateway_has_recorded_all_of_them(scene):
    scene.holding(1, 2).report(1, 2, number=5)
    assert [result.task_id for result in scene.stream.results] == [1, 2]
    scene.router.on_event(ResultsConfirmed([Ref(1, 9)]))
    assert scene.link.sent == []
    scene.router.on_event(ResultsConfirmed([Ref(2, 9)]))
    (ack,) = scene.link.sent
    assert (ack.result_ack.up_to, refused(ack)) == (5, [])
    assert scene.router.is_settled


def test_acknowledgement_names_the_results_of_lost_tasks(scene):
    scene.holding(1, 2).report(1, 2)
    scene.router.on_event(TaskStopped(Ref(1, 9), Stop.LOST))
    scene.router.on_event(ResultRejected(scene.stream.results[1], again=False, message="late", lost=True))
    assert sorted(refused(scene.link.sent[0])) == [(1, LOST), (2, LOST)]
    assert scene.told == [], "no job runs that could be interrupted"


def test_result_that_the_database_rejected_counts_as_recorded(scene):
    scene.holding(1).report(1)
    scene.router.on_event(ResultRejected(scene.stream.results[0], again=False, message="fixed words instead"))
    assert refused(scene.link.sent[0]) == []


def test_invalid_result_is_replaced_by_a_failure(scene):
    scene.holding(1).report(1)
    scene.router.on_event(ResultRejected(scene.stream.results[0], again=True, message="not JSON"))
    failed = scene.stream.results[1].failed
    assert (failed.poison, "not JSON" in failed.error) == (True, True)
    assert scene.link.sent == []
    scene.router.on_event(ResultRejected(scene.stream.results[1], again=True, message="still not"))
    assert refused(scene.link.sent[0]) == [(1, LOST)]


@pytest.mark.parametrize(("why", "event"), [(Stop.LOST, "lost"), (Stop.CANCELLED, "cancel")])
def test_supervisor_is_notified_of_lost_and_cancelled_tasks(scene, why, event):
    scene.holding(1)
    scene.router.on_event(TaskStopped(Ref(1, 9), why))
    scene.router.on_event(TaskStopped(Ref(7, 9), why))
    assert scene.told == [{"event": event, "incarnation": 4, "token": 9, "job": 1}]


def test_release_request_is_forwarded_and_the_rejection_of_a_ready_is_stored(scene):
    scene.router.on_event(ReleaseRequested())
    assert scene.told == [{"event": "release_rest"}]
    scene.router.on_event(ReadyRejected("not yours"))
    assert scene.router.rejected == "not yours"


def test_task_leases_are_extended_until_this_host_has_had_time_to_end_the_tasks(scene):
    scene.holding(1, timeout_seconds=15.0)
    assert scene.router.wake_at() == 110.0
    scene.router.extend(110.0)
    scene.router.extend(134.9)
    assert scene.stream.extended == [(Ref(1, 9), 30.0)] * 2
    scene.router.extend(200.0)
    assert len(scene.stream.extended) == 2


def test_progress_is_forwarded_to_the_gateway(scene):
    report = m.Progress(task=m.TaskRef(task_id=1, claim=9), fraction=0.5)
    scene.holding(1).router.on_request(scene.link, m.WorkRequest(progress=report), 0.0)
    assert scene.stream.progress == [report]


# -- a worker that reconnects


def test_results_that_arrive_before_the_stream_is_open_wait_for_it():
    """Otherwise the stream has no such tasks. The jobs would run again, and the worker would wait indefinitely."""
    scene = Scene()
    scene.router.has_started = False
    link = scene.join(4, Ref(1, 9), Ref(2, 9))
    scene.report(1, link=link)
    assert (scene.stream.results, sorted(scene.router.held())) == ([], [Ref(1, 9), Ref(2, 9)])
    scene.router.start()
    assert [(result.task_id, result.claim) for result in scene.stream.results] == [(1, 9)]
    scene.router.on_event(ResultsConfirmed([Ref(1, 9)]))
    assert refused(link.sent.pop()) == []
    assert scene.router.held() == [Ref(2, 9)]


def test_tasks_that_a_reconnecting_worker_did_not_receive_are_released(scene):
    scene.holding(1, 2)
    again = scene.join(4, Ref(1, 9))
    (result,) = scene.stream.results
    assert (result.task_id, result.WhichOneof("outcome"), result.ran_seconds) == (2, "abandon", -1.0)
    scene.report(1, link=again)
    scene.router.on_event(ResultsConfirmed([Ref(1, 9)]))
    assert len(again.sent) == 1


def test_end_of_an_earlier_connection_does_not_affect_the_new_one(scene):
    again = scene.join(4)
    scene.ready(link=again)
    scene.router.leave(scene.link)
    assert (scene.router.workers, scene.stream.taken_back) == ({4}, [])
    scene.give(1)
    assert again.sent.pop().HasField("tasks")


def test_task_that_only_the_worker_has_is_lost(scene):
    scene.join(4, Ref(1, 9))
    assert scene.told == [{"event": "lost", "incarnation": 4, "token": 9, "job": 1}]


def test_tasks_that_workers_report_before_the_stream_is_open_are_kept():
    scene = Scene()
    scene.router.has_started = False
    scene.join(4, Ref(1, 9))
    scene.router.restore(5, [Ref(2, 8)], 50.0)
    assert (scene.router.held(), scene.told) == ([Ref(1, 9), Ref(2, 8)], [])
    assert scene.router.wake_at() == NEVER
    scene.router.extend(50.0)
    assert scene.stream.extended == [], "the stream does not hold them yet"
    scene.router.start()
    scene.router.extend(50.0)
    assert dict(scene.stream.extended) == {Ref(1, 9): UNKNOWN_LEASE, Ref(2, 8): UNKNOWN_LEASE}


def test_kinds_are_declared_when_they_change(scene):
    scene.join(5)
    assert scene.stream.declared == [["a"]]
    scene.join(6, kinds=("b",))
    assert scene.stream.declared == [["a"], ["a", "b"]]


# -- the statements of the supervisor


def test_link_of_a_dead_worker_is_closed_and_its_ready_is_withdrawn(scene):
    scene.ready()
    assert scene.ask("recover/terminate_child_sessions", supervisor=1, incarnation=4) == [[["0", None]]]
    assert (scene.link.closed, scene.stream.taken_back) == (True, [1])
    assert scene.ask("recover/terminate_child_sessions", supervisor=1, incarnation=4) == [[["0", None]]] * 2


def test_settlement_of_the_supervisor_is_answered_when_it_is_recorded(scene):
    scene.holding(1, 2)
    crashed = Finished(
        1, Outcome("retry", error="it died", code="WORKER_CRASHED"), 3.0, crashed=1, post_mortem='{"a":1}'
    )
    assert scene.settle(crashed, Finished(7, Outcome("ok"), 1.0)) == []
    (result,) = scene.stream.results
    assert (result.failed.error, result.failed.crash.post_mortem, result.ran_seconds) == ("it died", b'{"a":1}', 3.0)
    scene.router.on_event(ResultsConfirmed([Ref(1, 9)]))
    assert scene.answers == [[["1"]]]


def test_result_reported_by_supervisor_and_worker_is_sent_once_and_a_later_one_is_lost(scene):
    scene.holding(1)
    scene.settle(Finished(1, Outcome("ok"), 1.0))
    scene.report(1)
    scene.router.on_event(ResultsConfirmed([Ref(1, 9)]))
    assert (len(scene.stream.results), scene.answers, refused(scene.link.sent[0])) == (1, [[["1"]]], [])
    scene.report(1, number=2)
    assert refused(scene.link.sent[1]) == [(1, LOST)]


def test_unstarted_tasks_of_a_dead_worker_are_released(scene):
    scene.holding(1, 2)
    assert scene.ask("recover/requeue_child", supervisor=1, incarnation=4, cleared=None, error="") == [[["1"], ["2"]]]
    assert [one.WhichOneof("outcome") for one in scene.stream.results] == ["abandon", "abandon"]


def test_task_of_a_dead_worker_counts_as_crashed_unless_its_claim_is_cleared(scene):
    scene.holding(1)
    scene.ready(number=2)
    scene.give(2, claim=10)
    scene.ask("recover/requeue_child", supervisor=1, incarnation=4, cleared=[9], error="it died")
    found = {one.task_id: (one.WhichOneof("outcome"), one.failed.HasField("crash")) for one in scene.stream.results}
    assert found == {1: ("abandon", False), 2: ("failed", True)}


def test_tasks_behind_a_long_job_are_released_except_those_of_the_same_call(scene):
    scene.holding(1, 2, 3, 4)
    assert scene.ask("recover/requeue_rest", child=4, token=9, job=2, called=[3]) == [[["4"]]]
    assert [one.task_id for one in scene.stream.results] == [4]
    assert scene.ask("recover/requeue_rest", child=4, token=9, job=7, called=None)[1] == []


def test_router_does_not_carry_out_other_statements(scene):
    assert not scene.router.carry_out("lease/renew", {}, scene.answers.append)
