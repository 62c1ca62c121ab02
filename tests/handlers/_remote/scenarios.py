"""Scenes between the public client and a scripted gateway: a program that runs one scene per process.

`python -m tests.handlers._remote.scenarios NAME` fails with a traceback, or prints nothing.
Each scene has its own process: grpc starts threads, and other tests fork.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import grpc

from jobherd import Abandon, Nack, Poison, Retry, Snooze
from jobherd.handlers._remote import channels
from jobherd.handlers._remote import client as client_module
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote import worker as worker_module
from jobherd.remote import AccessDeniedError, Producer, RejectedError, UnreachableError, Worker
from tests.handlers._remote.fake_gateway import END, LIMIT, FakeGateway

SCENES = {}


def scene(function):
    SCENES[function.__name__] = function
    return function


class Running:
    """A worker whose `run` method runs in a thread."""

    def __init__(self, address, handler, **options):
        self.worker = Worker(address, **{"token": "secret", "concurrency": 1, **options})
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(handler,))
        self._thread.start()

    def _run(self, handler):
        try:
            self.worker.run(handler)
        except BaseException as problem:
            self.error = problem

    def join(self):
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "run did not return"

    def close(self):
        self.worker.close()
        self.join()
        assert self.error is None, self.error


@contextmanager
def working(handler, **options):
    """Yield a gateway, a worker, and the worker's first stream after its HelloAck."""
    with FakeGateway() as gateway:
        worker = Running(gateway.address, handler, **options)
        stream = gateway.stream()
        stream.welcome()
        yield gateway, worker, stream


class Relay:
    """Forwards bytes between one client and a port. After `swallow` it drops them all."""

    def __init__(self, port):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._port, self._swallows, self._sockets = port, False, []

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        for one in (self._listener, *self._sockets):
            one.close()

    def swallow(self):
        self._swallows = True

    def _serve(self):
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        self._sockets = [near, far]
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source, target):
        try:
            while data := source.recv(65536):
                if not self._swallows:
                    target.sendall(data)
        except OSError:
            pass  # the scene has ended


class Log(logging.Handler):
    """Collects the log messages of the client, so that a scene can wait for one."""

    def __init__(self):
        super().__init__()
        self.lines = SimpleQueue()
        logger = logging.getLogger("jobherd.remote")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record):
        self.lines.put(record.getMessage())

    def wait(self, text):
        while text not in (line := self.lines.get(timeout=LIMIT)):
            pass
        return line


def ref(task, claim=1):
    return m.TaskRef(task_id=task, claim=claim)


def finish(stream, worker):
    """Close an idle worker: its Ready is withdrawn, its results are confirmed, the stream ends normally."""
    worker.worker.close()
    while (request := stream.read()) is not END:
        kind = request.WhichOneof("event")
        if kind == "results":
            stream.confirm(request.results)
        if kind == "ready" and not request.ready.count:
            stream.give(request.ready.number)
    stream.end()
    worker.join()
    assert worker.error is None, worker.error


def until_cancelled(task):
    """Wait until the task is canceled, as a handler that checks `cancelled` does."""
    while not task.cancelled:
        threading.Event().wait(0.001)


# An unbroken stream.


@scene
def tasks_run_and_results_are_reported():
    def handle(task):
        assert (task.id, task.kind, task.payload, task.payload_bytes, task.attempt, task.tenant) == (
            5, "a", {"n": 3}, b"\0", 2, None,
        )  # fmt: skip
        return {"doubled": 2 * task.payload["n"]}

    with FakeGateway() as gateway:
        worker = Running(
            gateway.address, handle, worker_id="here", kinds=["a", "b:*"], queues=["q"], lease="1m", batch=7
        )
        stream = gateway.stream()
        hello = stream.welcome()
        assert (hello.token, hello.worker_id, hello.session) == ("secret", "here", "")
        assert hello.max_message_bytes == 8 << 20
        assert list(hello.kinds) == [m.KindPolicy(kind="a")], "a prefix names no kind"
        ready = stream.read("ready")
        assert (ready.kinds, ready.queues, ready.count, ready.lease_seconds) == (["a", "b:*"], ["q"], 7, 60.0)
        stream.give(ready.number, {"id": 5, "payload": b'{"n":3}', "data": b"\0", "attempt": 2})
        batch = stream.read("results")
        (result,) = batch.results
        assert (result.task_id, result.claim, result.completed.result) == (5, 1, b'{"doubled":6}')
        assert result.ran_seconds >= 0
        stream.confirm(batch)
        finish(stream, worker)


@scene
def every_slot_asks_on_one_stream():
    barrier = threading.Barrier(4)

    def handle(_task):
        barrier.wait(LIMIT)  # passes only if four tasks run at the same time

    with working(handle, concurrency=4) as (gateway, worker, stream):
        for task in range(1, 5):
            stream.give(stream.read("ready").number, {"id": task}, claim=task)
        reported = set()
        while len(reported) < 4:
            batch = stream.read("results")
            reported |= {result.task_id for result in batch.results}
            stream.confirm(batch)
        assert not gateway.has_stream()
        finish(stream, worker)


@scene
def what_a_handler_ends_with_is_the_outcome():
    endings = {
        1: Nack("5m", "full"),
        2: Retry(),
        3: Snooze(7),
        4: Abandon(),
        5: Poison("never", "BAD"),
        6: KeyError("x"),
    }

    def handle(task):
        if task.id % 2:
            return endings[task.id]
        raise endings[task.id]

    with working(handle, batch=6) as (_, worker, stream):
        stream.give(stream.read("ready").number, *({"id": one} for one in endings))
        found = {}
        while len(found) < 6:
            batch = stream.read("results")
            found |= {one.task_id: one for one in batch.results}
            stream.confirm(batch)
        assert (found[1].nack.delay_seconds, found[1].nack.reason) == (300.0, "full")
        assert found[2].WhichOneof("outcome") == "nack"
        assert not found[2].nack.HasField("delay_seconds")
        assert found[3].snooze.delay_seconds == 7
        assert found[4].WhichOneof("outcome") == "abandon"
        assert (found[5].failed.poison, found[5].failed.code, found[5].failed.error) == (True, "BAD", "never")
        assert found[6].failed.error == "KeyError: 'x'"
        assert "raise endings[task.id]" in found[6].failed.traceback
        finish(stream, worker)


@scene
def a_task_that_must_not_start_is_not_started():
    ran, started, gate = [], threading.Event(), threading.Event()

    def handle(task):
        ran.append(task.id)
        started.set()
        gate.wait(LIMIT)

    with working(handle, batch=5) as (_, worker, stream):
        tasks = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4, "expires_in_seconds": 1e-9}, {"id": 5, "payload": b"{"}]
        stream.give(stream.read("ready").number, *tasks)
        assert started.wait(LIMIT)
        stream.send(cancel=m.Cancel(task=ref(2), reason=m.Cancel.REASON_CANCELLED))
        stream.send(cancel=m.Cancel(task=ref(3), reason=m.Cancel.REASON_LOST))
        stream.read("heartbeat")  # after losing a task, the worker sends a heartbeat
        gate.set()
        found = {}
        while len(found) < 4:
            batch = stream.read("results")
            found |= {one.task_id: one for one in batch.results}
            stream.confirm(batch)
        assert ran == [1]
        assert {one: result.WhichOneof("outcome") for one, result in found.items()} == {
            1: "completed", 2: "cancelled", 4: "expired", 5: "failed",
        }  # fmt: skip
        assert (found[5].failed.code, found[5].failed.poison) == ("PAYLOAD_INVALID", True)
        assert all(found[one].ran_seconds < 0 for one in (2, 4, 5))
        finish(stream, worker)


@scene
def a_lease_is_extended_only_when_the_handler_asks():
    told, gate = SimpleQueue(), threading.Event()

    def handle(task):
        gate.wait(LIMIT)
        task.extend("1m")
        until_cancelled(task)
        told.put(task.id)

    with working(handle) as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        stream.send(release_rest=m.ReleaseRest())  # without unstarted tasks, the worker sends no answer
        gate.set()
        beat = stream.read()
        assert beat.WhichOneof("event") == "heartbeat"
        assert (list(beat.heartbeat.tasks), beat.heartbeat.extend_seconds) == ([ref(5)], 60.0)
        stream.send(heartbeat_ack=m.HeartbeatAck(number=beat.heartbeat.number, lost=[ref(5)], session_seconds=30))
        assert told.get(timeout=LIMIT) == 5
        stream.read("ready")  # the next message is a Ready: no result was sent
        finish(stream, worker)


@scene
def a_cancelled_handler_can_stop():
    started = threading.Event()

    def handle(task):
        started.set()
        until_cancelled(task)
        raise ValueError("stopped")

    for reason, outcome in ((m.Cancel.REASON_CANCELLED, "cancelled"), (m.Cancel.REASON_TIMEOUT, "failed")):
        started.clear()
        with working(handle) as (_, worker, stream):
            stream.give(stream.read("ready").number, {"id": 5})
            started.wait(LIMIT)
            stream.send(cancel=m.Cancel(task=ref(5), reason=reason))
            batch = stream.read("results")
            (result,) = batch.results
            assert result.WhichOneof("outcome") == outcome
            assert result.failed.code == ("JOB_TIMEOUT" if outcome == "failed" else "")
            stream.confirm(batch)
            finish(stream, worker)


@scene
def a_pause_releases_what_has_not_started():
    started, gate = threading.Event(), threading.Event()

    def handle(task):
        started.set()
        gate.wait(LIMIT)

    with working(handle, batch=3) as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5}, {"id": 6}, {"id": 7})
        started.wait(LIMIT)
        stream.send(release_rest=m.ReleaseRest())
        assert stream.read("release") == m.Release(claim=1, behind_task_id=5)
        gate.set()
        batch = stream.read("results")
        assert [one.task_id for one in batch.results] == [5]
        stream.confirm(batch)
        finish(stream, worker)


@scene
def a_result_that_is_invalid_becomes_a_failure():
    with working(lambda task: "x") as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        batch = stream.read("results")
        stream.confirm(batch, m.Refusal(reason=m.Refusal.REASON_INVALID, task=ref(5), message="no JSON"))
        again = stream.read("results")
        assert again.results[0].failed.error == "the gateway rejected the result: no JSON"
        stream.confirm(again)
        finish(stream, worker)


# Streams that break.


@scene
def an_unconfirmed_result_is_sent_again_on_the_next_stream():
    with working(lambda task: task.id) as (gateway, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        first = stream.read("results")
        stream.end("UNAVAILABLE", "gone")
        stream = gateway.stream()
        hello = stream.welcome()
        assert (hello.session, list(hello.held)) == ("1", [ref(5)])
        again = stream.read("results")
        assert (again.number, list(again.results)) == (1, list(first.results))
        stream.confirm(again)
        finish(stream, worker)


@scene
def the_stream_can_break_at_every_message():
    """Cut the stream after each message that either side sends: the job runs once and is recorded once."""
    for cut in ("hello", "hello_ack", "ready", "tasks", "results", "result_ack"):
        cut_at(cut)


def cut_at(cut):
    ran, started, gate = [], threading.Event(), threading.Event()

    def handle(task):
        ran.append(task.id)
        started.set()
        gate.wait(LIMIT)
        return task.id

    with FakeGateway() as gateway:
        worker = Running(gateway.address, handle)
        held, recorded = until_cut(gateway.stream(), cut, started, gate)
        stream = gateway.stream()
        hello = stream.welcome()
        if cut != "hello":  # HelloAck may be lost with the stream
            assert hello.session == "1" or cut == "hello_ack", cut
        assert list(hello.held) == held, cut
        gate.set()
        if not started.is_set():
            stream.give(stream.read("ready").number, {"id": 5})
        if held or not recorded:
            batch = stream.read("results")
            recorded.update(one.task_id for one in batch.results)
            stream.confirm(batch)
        assert (ran, recorded) == ([5], {5}), cut
        finish(stream, worker)


def until_cut(stream, cut, started, gate):
    """Act as the gateway until that message. Return the tasks that the worker must hold, and the recorded jobs."""
    stream.read("hello")
    if cut == "hello":
        stream.end("UNAVAILABLE", "cut")
        return [], set()
    stream.send(hello_ack=m.HelloAck(session="1", session_seconds=30))
    if cut == "hello_ack":
        stream.end("UNAVAILABLE", "cut")
        return [], set()
    ready = stream.read("ready")
    if cut == "ready":
        stream.end("UNAVAILABLE", "cut")
        return [], set()
    stream.give(ready.number, {"id": 5})
    assert started.wait(LIMIT)
    if cut == "tasks":
        stream.end("UNAVAILABLE", "cut")
        return [ref(5)], set()
    gate.set()
    batch = stream.read("results")
    if cut == "results":
        stream.end("UNAVAILABLE", "cut")
        return [ref(5)], {5}
    stream.confirm(batch)
    stream.send(drain=m.Drain(within_seconds=9))
    assert stream.over.wait(LIMIT)  # the worker exits only because the acknowledgement has arrived
    stream.end()
    return [], {5}


@scene
def a_running_task_survives_a_break_and_a_lost_one_is_told():
    gate, begun, told = threading.Event(), SimpleQueue(), SimpleQueue()

    def handle(task):
        begun.put(task.id)
        if task.id == 6:
            until_cancelled(task)
        gate.wait(LIMIT)
        told.put((task.id, task.cancelled))

    with working(handle, concurrency=2) as (gateway, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5}, claim=1)
        stream.give(stream.read("ready").number, {"id": 6}, claim=2)
        assert {begun.get(timeout=LIMIT), begun.get(timeout=LIMIT)} == {5, 6}
        stream.end("UNAVAILABLE", "cut")
        stream = gateway.stream()
        hello = stream.welcome(lost=[ref(6, 2)])
        assert sorted(one.task_id for one in hello.held) == [5, 6]
        gate.set()
        assert sorted(told.get(timeout=LIMIT) for _ in range(2)) == [(5, False), (6, True)]
        batch = stream.read("results")
        assert [one.task_id for one in batch.results] == [5]
        stream.confirm(batch)
        finish(stream, worker)


@scene
def a_session_that_is_gone_is_replaced():
    begun, gate, log = threading.Event(), threading.Event(), Log()

    def handle(task):
        begun.set()
        until_cancelled(task)
        gate.set()

    with working(handle) as (gateway, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        assert begun.wait(LIMIT)
        stream.end("ABORTED", "attached elsewhere")
        stream = gateway.stream()
        assert stream.read("hello").session == "1"
        stream.end("NOT_FOUND", "no such session")
        assert "no such session" in log.wait("does not resume")
        assert gate.wait(LIMIT)
        stream = gateway.stream()
        hello = stream.welcome("2")
        assert (hello.session, list(hello.held)) == ("", [])
        log.wait("result discarded")
        stream.read("ready")
        finish(stream, worker)


@scene
def the_next_address_is_tried():
    with FakeGateway() as first, FakeGateway() as second:
        worker = Running([first.address, second.address], lambda task: None)
        stream = first.stream()
        stream.welcome()
        stream.read("ready")
        first.stop()
        stream = second.stream()
        assert stream.welcome().session == "1"
        finish(stream, worker)


@scene
def a_gateway_that_is_away_is_reported_once_and_tried_again():
    log = Log()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    worker = Running(f"127.0.0.1:{port}", lambda task: None)
    assert f"127.0.0.1:{port} is not connected, trying again" in log.lines.get(timeout=LIMIT)
    with FakeGateway(f"127.0.0.1:{port}") as gateway:
        stream = gateway.stream()
        stream.welcome()
        assert "connected to gateway" in log.lines.get(timeout=LIMIT), "the outage was logged more than once"
        finish(stream, worker)


@scene
def a_gateway_that_does_not_answer_hello_is_left():
    client_module.HELLO_SECONDS = 2.0
    with FakeGateway() as silent, FakeGateway() as gateway:
        worker = Running([silent.address, gateway.address], lambda task: None)
        assert silent.stream().over.wait(LIMIT)
        stream = gateway.stream()
        stream.welcome()
        finish(stream, worker)


@scene
def a_network_that_swallows_everything_is_left():
    """No packet shows that the peer is gone. The client detects it only by the missing answer to a ping."""
    options = dict(channels.OPTIONS) | {
        "grpc.keepalive_time_ms": 1000, "grpc.keepalive_timeout_ms": 1000, "grpc.http2.ping_timeout_ms": 1000,
    }  # fmt: skip
    channels.OPTIONS = tuple(options.items())
    with FakeGateway() as gateway, Relay(gateway.port) as relay:
        worker = Running([relay.address, gateway.address], lambda task: task.id)
        stream = gateway.stream()
        stream.welcome()
        ready = stream.read("ready")
        relay.swallow()
        stream.give(ready.number, {"id": 5})
        stream = gateway.stream()
        assert stream.welcome().session == "1"
        finish(stream, worker)


@scene
def a_draining_gateway_keeps_the_running_task_and_then_loses_the_worker():
    gate = threading.Event()
    with FakeGateway() as first, FakeGateway() as second:
        worker = Running([first.address, second.address], lambda task: gate.wait(LIMIT), concurrency=2)
        stream = first.stream()
        stream.welcome()
        running, waiting = stream.read("ready"), stream.read("ready")
        stream.give(running.number, {"id": 5})
        stream.give(waiting.number)
        stream.send(drain=m.Drain(within_seconds=30))
        gate.set()
        batch = stream.read("results")
        assert not second.has_stream()
        stream.confirm(batch)
        assert stream.over.wait(LIMIT)
        stream.end()
        stream = second.stream()
        assert stream.welcome().session == "1"
        stream.read_ready()
        finish(stream, worker)


@scene
def a_slow_gateway_holds_the_worker_back():
    """The gateway confirms nothing: after 256 batches, results and Readys wait, and none is dropped."""
    with FakeGateway() as gateway:
        worker = Running(gateway.address, lambda task: None)
        stream = gateway.stream()
        stream.welcome(max_slots=1000)
        given, reported, batches = 0, set(), []
        while len(batches) < 256:
            request = stream.read()
            batch = request.results if request.WhichOneof("event") == "results" else m.ResultBatch(ready=request.ready)
            if batch.results:
                batches.append(batch)
                reported.update(one.task_id for one in batch.results)
            if batch.ready.number:
                given += 1
                stream.give(batch.ready.number, {"id": given}, claim=given)
        if given > len(reported):  # the last batch came with a Ready: the result of its task waits
            stream.confirm(batches[0])
            batches.append(stream.read("results"))
            reported.update(one.task_id for one in batches[-1].results)
        assert reported == set(range(1, given + 1))
        stream.confirm(batches[-1])
        finish(stream, worker)


# Rejections.


def refused(status, details, kind, text):
    with FakeGateway() as gateway:
        worker = Running(gateway.address, lambda task: None)
        stream = gateway.stream()
        stream.read("hello")
        stream.end(status, details)
        worker.join()
        assert type(worker.error) is kind, worker.error
        assert text in str(worker.error), worker.error
        assert gateway.address in str(worker.error)


@scene
def a_wrong_token_ends_the_worker():
    refused("UNAUTHENTICATED", "unknown token", AccessDeniedError, "rejected the token or certificate: unknown token")
    refused("PERMISSION_DENIED", "role enqueue", AccessDeniedError, "does not allow this: role enqueue")
    refused("INVALID_ARGUMENT", "worker_id", RejectedError, "rejected the request: worker_id")


@scene
def a_file_that_cannot_be_read_ends_the_worker():
    """The worker ends before most slots have requested tasks. No slot waits."""
    worker = Running("127.0.0.1:1", lambda task: None, ca="/nonexistent/ca.pem", concurrency=50)
    worker.join()
    assert str(worker.error) == "cannot read /nonexistent/ca.pem: No such file or directory"


@scene
def another_server_is_named():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    worker = Running(f"127.0.0.1:{port}", lambda task: None)
    worker.join()
    server.stop(None).wait()
    assert "is not a gateway of this version of Jobherd" in str(worker.error), worker.error


@scene
def a_token_that_is_withdrawn_ends_the_worker_after_its_tasks():
    begun, told = SimpleQueue(), SimpleQueue()

    def handle(task):
        begun.put(task.id)
        until_cancelled(task)
        told.put(task.id)

    with working(handle) as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        # The end of a stream can arrive before messages that were sent on it earlier.
        assert begun.get(timeout=LIMIT) == 5
        stream.end("UNAUTHENTICATED", "the token was withdrawn")
        worker.join()
        assert told.get(timeout=LIMIT) == 5
        assert "withdrawn" in str(worker.error)


@scene
def kinds_that_the_token_does_not_allow_end_the_worker():
    with working(lambda task: None, kinds=["b"]) as (_, worker, stream):
        number = stream.read("ready").number
        stream.send(refusal=m.Refusal(reason=m.Refusal.REASON_NOT_ALLOWED, ready=number, message="kinds: b"))
        stream.read(END)
        stream.end()
        worker.join()
        assert isinstance(worker.error, AccessDeniedError)
        assert "kinds: b" in str(worker.error)


# Closing.


@scene
def close_finishes_the_running_task_and_releases_the_rest():
    started, gate, log = threading.Event(), threading.Event(), Log()

    def handle(task):
        started.set()
        gate.wait(LIMIT)

    with working(handle, batch=2) as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5}, {"id": 6})
        started.wait(LIMIT)
        worker.worker.close()
        assert stream.read("release") == m.Release(claim=1, behind_task_id=5)
        gate.set()
        batch = stream.read("results")
        assert not batch.HasField("ready")
        stream.confirm(batch)
        stream.read(END)
        stream.end()
        worker.join()
        assert worker.error is None
        while not log.lines.empty():
            assert "exited with results" not in log.lines.get()


@scene
def tasks_that_cross_the_close_are_released():
    with working(lambda task: 1 / 0) as (_, worker, stream):
        number = stream.read("ready").number
        worker.worker.close()
        assert stream.read("ready") == m.Ready(number=number)
        stream.give(number, {"id": 5})
        assert stream.read("release") == m.Release(claim=1)
        stream.read(END)
        stream.end()
        worker.join()
        assert worker.error is None


@scene
def sigterm_finishes_the_worker():
    before = signal.getsignal(signal.SIGTERM)
    with FakeGateway() as gateway:
        worker = Worker(gateway.address, token="secret", concurrency=1)
        errors = SimpleQueue()

        def script():
            try:
                stream = gateway.stream()
                stream.welcome()
                stream.give(stream.read("ready").number, {"id": 5})
                batch = stream.read("results")
                stream.confirm(batch)
                while (request := stream.read()) is not END:
                    if request.WhichOneof("event") == "ready" and not request.ready.count:
                        stream.give(request.ready.number)
                stream.end()
                errors.put(None)
            except BaseException as problem:
                errors.put(problem)

        threading.Thread(target=script).start()
        worker.run(lambda task: os.kill(os.getpid(), signal.SIGTERM))
        problem = errors.get(timeout=LIMIT)
        assert problem is None, problem
        assert signal.getsignal(signal.SIGTERM) is before


@scene
def a_worker_without_a_gateway_leaves_when_asked():
    log = Log()
    worker = Running("127.0.0.1:1", lambda task: None)
    log.wait("is not connected")
    worker.close()


@scene
def a_worker_does_not_wait_for_a_confirmation_without_end():
    worker_module.CONFIRM_SECONDS = 0.05
    log = Log()
    with working(lambda task: None) as (_, worker, stream):
        stream.give(stream.read("ready").number, {"id": 5})
        stream.read("results")
        worker.worker.close()
        log.wait("exited with results")
        stream.end()
        worker.join()


# TLS, and producers.


def certificate(name):
    """Create a self-signed certificate. Return its file and its key's file."""
    folder = Path(tempfile.mkdtemp())
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@scene
def a_worker_checks_the_gateways_certificate():
    cert, key = certificate("localhost")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())], cert.read_bytes(), True)
    with FakeGateway("localhost:0", credentials=credentials) as gateway:
        worker = Running(gateway.address, lambda task: None, token=None, ca=cert, cert=cert, key=key)
        stream = gateway.stream()
        assert stream.welcome().token == ""
        finish(stream, worker)
        log = Log()
        worker = Running(gateway.address, lambda task: None, ca=certificate("elsewhere")[0])
        log.wait("is not connected")
        worker.close()
        assert not gateway.has_stream()


def answering(*answers, seen):
    """Return a method of a fake producer service: each call gets the next answer, a status or a response."""
    left = iter(answers)

    def method(request, context):
        seen.append((request, dict(context.invocation_metadata()).get("authorization")))
        answer = next(left)
        if isinstance(answer, str):
            context.abort(getattr(grpc.StatusCode, answer), "scripted")
        return answer

    return method


@scene
def a_producer_repeats_an_enqueue_with_the_same_key():
    seen = []
    enqueue = answering("UNAVAILABLE", m.EnqueueResponse(ids=[42]), m.EnqueueResponse(ids=[1, 2]), seen=seen)
    with FakeGateway(Enqueue=enqueue) as gateway, Producer(gateway.address, token="secret") as producer:
        assert producer.enqueue("a", {"n": 1}, priority=-5, delay="10m", payload_bytes=b"\0") == 42
        (first, token), (again, _) = seen
        assert first == again
        assert len(first.idempotency_key) == 32
        assert token == "Bearer secret"
        (job,) = first.jobs
        assert (job.kind, job.payload, job.data, job.priority, job.delay_seconds) == ("a", b'{"n":1}', b"\0", -5, 600.0)
        assert producer.enqueue_many("a", [{}, {}], idempotency_key="mine", queue="q") == [1, 2]
        request = seen[2][0]
        assert (request.idempotency_key, [job.queue for job in request.jobs]) == ("mine", ["q", "q"])
        assert producer.enqueue_many("a", []) == []


@scene
def a_producer_uses_the_next_gateway():
    seen = []
    with FakeGateway(Enqueue=answering(m.EnqueueResponse(ids=[42]), seen=seen)) as gateway:
        with Producer(f"127.0.0.1:1,{gateway.address}") as producer:
            assert producer.enqueue("a") == 42
        assert seen[0][1] is None


@scene
def a_producer_says_what_is_wrong():
    seen = []
    answers = ("UNAUTHENTICATED", "INVALID_ARGUMENT", "PERMISSION_DENIED")
    with FakeGateway(Enqueue=answering(*answers, seen=seen)) as gateway, Producer(gateway.address) as producer:
        for kind in (AccessDeniedError, RejectedError, AccessDeniedError):
            try:
                producer.enqueue("a")
            except kind as problem:
                assert "scripted" in str(problem)
            else:
                raise AssertionError("no error")
        assert len(seen) == 3
    with Producer("127.0.0.1:1", timeout=0.2) as producer:
        try:
            producer.enqueue("a")
        except UnreachableError as problem:
            assert "no gateway has answered within 0.2 s; 127.0.0.1:1: " in str(problem)
        else:
            raise AssertionError("no error")


@scene
def a_producer_shows_waits_and_cancels():
    jobs = [
        m.GetJobResponse(job=f'{{"state":"{state}"}}'.encode())
        for state in ("running", "running", "completed", "ready")
    ]
    seen, cancels = [], []
    get = answering(*jobs[:3], "NOT_FOUND", jobs[3], "NOT_FOUND", seen=seen)
    cancel = answering(m.CancelJobResponse(state="cancelling"), "NOT_FOUND", seen=cancels)
    with FakeGateway(GetJob=get, CancelJob=cancel) as gateway, Producer(gateway.address) as producer:
        assert producer.get(7) == {"state": "running"}
        assert producer.wait(7) == {"state": "completed"}
        assert [one.wait_seconds for one, _ in seen] == [0.0, 30.0, 30.0]
        assert producer.get(8) is None
        for error in (TimeoutError, LookupError):
            try:
                producer.wait(7, timeout=0)
            except error as problem:
                assert "job 7" in str(problem)
            else:
                raise AssertionError("no error")
        assert producer.cancel(7, reason="mistake") == "cancelling"
        assert producer.cancel(8) is None
        assert (cancels[0][0].id, cancels[0][0].reason) == (7, "mistake")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT + 5, exit=True)
    try:
        SCENES[sys.argv[1]]()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of the scene may still be waiting
