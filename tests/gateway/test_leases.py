"""Leases of tasks and sessions: expiry, extension, timeout, silence, resume, and a gateway that has exited."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.sql.migrate import migrate
from tests.gateway.conftest import QUEUE, serve
from tests.gateway.remote import done, reasons, ref
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway.remote import Client, Stream


def resumed(client: Client, where: str, before: Stream, *held: dict[str, str]) -> tuple[Stream, dict[str, object]]:
    """Resume the session of a stream on a new stream. Return the new stream and its HelloAck."""
    stream = client.stream(where, patient=True)
    return stream, stream.hello(session=before.session, held=[ref(task) for task in held])


@pytest.mark.promise("D24")
@pytest.mark.promise("D25")
def test_task_whose_lease_expires_is_retried_and_its_late_result_is_lost(stage: Stage, client: Client):
    served = serve(stage, gateway_task_lease="1s")
    worker = client.stream(served.where)
    worker.hello()
    job = served.enqueue("l:lapse", max_attempts=2)
    kept = served.enqueue("l:kept")
    task, other = worker.task("l:lapse"), worker.task("l:kept", lease_seconds=600)
    assert (task["lease_seconds"], other["lease_seconds"]) == (1, 600)
    told = worker.expect("cancel")
    assert (told["task"], told["reason"]) == (ref(task), "REASON_LOST")
    row = stage.wait_state(job, "retrying")
    assert (row["attempts"], row["error_code"]) == (1, "LEASE_EXPIRED")
    assert reasons(worker.end(done(task))) == {job: "REASON_LOST"}
    assert stage.state(job) == "retrying", "a late result changes nothing"
    assert worker.beat(task)["lost"] == [ref(task)]
    assert "refusals" not in worker.end(done(other))
    assert stage.state(kept) == "completed"
    # The lease of the first task is extended, that of the second one expires.
    for lease in (1, 5, 25):  # a busy machine may need longer to extend it
        jobs = stage.enqueue_many("l:extended", 2, queue=QUEUE)
        first, second = worker.tasks(worker.ready("l:extended", count=2, lease_seconds=lease))
        if "lost" not in worker.beat(first, extend=600):
            break
    assert worker.expect("cancel", lambda told: told["task"] == ref(second))
    assert stage.states(jobs) == ["running", "retrying"]
    assert "refusals" not in worker.end(done(first))
    # No extension is longer than the timeout of the job.
    job = served.enqueue("l:timeout", timeout=1.0)
    task = worker.task("l:timeout", lease_seconds=600)
    assert task["lease_seconds"] <= 1
    worker.beat(task, extend=600)
    assert worker.expect("cancel", lambda told: told["task"] == ref(task))
    assert stage.wait_state(job, "retrying")["error_code"] == "LEASE_EXPIRED"


def test_session_resumed_after_a_broken_stream_loses_no_task(stage: Stage, client: Client):
    served = serve(stage, gateway_linger="300s")
    worker = client.stream(served.where)
    worker.hello()
    jobs = stage.enqueue_many("l:resume", 4, queue=QUEUE)
    one, two = worker.task("l:resume"), worker.task("l:resume")
    rest = worker.tasks(worker.ready("l:resume", count=2))
    worker.do("cut")
    worker.status()
    # The worker has `one` and `rest[0]`. The other two tasks never reached it.
    again, ack = resumed(client, served.where, worker, one, rest[0], {"id": "999", "claim": "999"})
    assert ack["session"] == worker.session
    assert ack["lost"] == [{"task_id": "999", "claim": "999"}]
    stage.wait_all([int(two["id"]), int(rest[1]["id"])], "ready")
    assert stage.job(int(two["id"]))["attempts"] == 0, "the job never started"
    assert "refusals" not in again.end(done(one), done(rest[0]))
    assert reasons(again.end(done(two))) == {int(two["id"]): "REASON_LOST"}
    more = again.tasks(again.ready("l:resume", count=4))
    again.end(*map(done, more))
    stage.wait_all(jobs, "completed")
    # A second stream for the same session ends the first one.
    third, _ = resumed(client, served.where, again)
    assert again.status()[0] == "ABORTED"
    assert third.beat()


def test_session_resumes_at_the_gateway_of_another_supervisor(stage: Stage, client: Client):
    first, second = serve(stage), serve(stage)
    worker = client.stream(first.where)
    worker.hello()
    jobs = stage.enqueue_many("l:move", 3, queue=QUEUE)
    task, lost = worker.task("l:move"), worker.task("l:move")
    again, ack = resumed(client, second.where, worker, task)
    assert "lost" not in ack
    stage.wait_state(int(lost["id"]), "ready")
    assert "refusals" not in again.end(done(task))
    # The first gateway has not noticed yet. Its claim gets no job, and it ends the stream.
    worker.ready("l:move")
    assert worker.status()[0] == "ABORTED"
    again.end(*map(done, again.tasks(again.ready("l:move", count=2))))
    stage.wait_all(jobs, "completed")
    # The second supervisor dies: the worker resumes at the first gateway, with its task.
    job = second.enqueue("l:back")
    task = again.task("l:back")
    second.fleet.signal(signal.SIGKILL)
    again.status()
    second.fleet.wait_gone()
    assert not second.fleet.said("an error of Jobherd's own")
    back, ack = resumed(client, first.where, again, task)
    assert "lost" not in ack
    assert "refusals" not in back.end(done(task))
    assert stage.runs(job) == 1


def test_job_of_a_worker_that_does_not_reconnect_is_reclaimed_and_its_attempt_counted(stage: Stage, client: Client):
    # Supervisors reclaim at each third of their lease.
    served = serve(stage, gateway_linger="0s", lease="6s")
    worker = client.stream(served.where)
    worker.hello()
    job = served.enqueue("l:gone")
    task = worker.task("l:gone")
    worker.do("cut")
    stage.wait(lambda: stage.runs(job) == 1 and stage.state(job) != "running", "the job to be reclaimed")
    row = stage.job(job)
    assert row["attempts"] == 1
    assert "its remote worker was lost" in str(row)
    late = client.stream(served.where)
    late.send(hello={"session": worker.session, "held": [ref(task)]})
    assert late.status()[0] == "NOT_FOUND"
    sessions = "SELECT count(*) FROM jobherd.supervisors WHERE via IS NOT NULL"
    assert stage.call(sessions) == 0
    fresh = client.stream(served.where)
    fresh.hello()
    assert reasons(fresh.end(done(task))) == {job: "REASON_LOST"}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_exit_of_a_gateway_loses_no_task(stage: Stage, client: Client, signum: signal.Signals):
    served = serve(stage)
    worker = client.stream(served.where)
    worker.hello()
    jobs = stage.enqueue_many("l:killed", 3, queue=QUEUE)
    tasks = worker.tasks(worker.ready("l:killed", count=2))
    waits = worker.ready("l:none")
    os.kill(int(served.fleet.said("gateway is ready")[-1]["pid"]), signum)
    if signum == signal.SIGTERM:
        assert worker.expect("drain")["within_seconds"] > 0
        assert worker.tasks(waits) == [], "a waiting Ready is answered"
        assert "refusals" not in worker.end(done(tasks[0]))
        late = worker.ready("l:killed")
        assert worker.tasks(late) == [], "no task follows"
        worker.results(done(tasks[1]))
    worker.status()
    served.fleet.wait_log(f"gateway on {served.where}", count=2)
    again, ack = resumed(client, served.where, worker, *tasks)
    if signum == signal.SIGTERM:
        assert len(ack["lost"]) == 2, "the worker reported both before"
    else:
        assert "lost" not in ack
        assert "refusals" not in again.end(*map(done, tasks))
    again.end(done(again.task("l:killed")))
    stage.wait_all(jobs, "completed")
    assert {stage.runs(job) for job in jobs} == {1}


def test_stream_of_a_client_that_does_not_read_for_a_lease_is_ended(stage: Stage, client: Client):
    # 72 MB pass through the gateway first: a shorter lease can expire in the database meanwhile.
    served = serve(stage, gateway_lease="9s", gateway_linger="0s", lease="6s")
    slow = client.stream(served.where)
    slow.hello(max_message_bytes=8 << 20)
    slow.do("hold")
    jobs = [served.enqueue("l:slow", '{"x": "' + "y" * 3_000_000 + '"}') for _ in range(24)]
    for _ in jobs:
        slow.ready("l:slow")
    stage.wait(lambda: stage.census(jobs).get("running"), "a claim")
    stage.wait(lambda: not stage.census(jobs).get("running"), lambda: f"the end of {stage.census(jobs)}")
    slow.do("read")
    assert slow.status()[0] in {"RESOURCE_EXHAUSTED", "CANCELLED", "UNKNOWN"}
    brisk = client.stream(served.where)
    brisk.hello()
    served.enqueue("l:brisk")
    brisk.end(done(brisk.task("l:brisk")))


def test_session_survives_a_database_outage_longer_than_every_lease(tmp_path: Path, client: Client):
    with Cluster(place=quick_place()) as own, own.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Stage(dsn, tmp_path, audit=False) as stage:
            served = serve(stage, lease="6s", gateway_lease="6s")
            worker = client.stream(served.where)
            worker.hello()
            job = served.enqueue("l:away")
            task = worker.task("l:away")
            watching = client.watch(served.where)
            assert watching() == "SERVING"
            own.stop()
            number = worker.results(done(task))
            waits = worker.ready("l:back")
            assert watching() == "NOT_SERVING", "the lease of the supervisor has expired"
            assert worker.heard("result_ack") == []
            own.start()
            ack = worker.expect("result_ack", lambda ack: int(ack["up_to"]) >= number)
            assert "refusals" not in ack
            stage.reconnect()
            assert stage.state(job) == "completed"
            job = served.enqueue("l:back")
            [task] = worker.tasks(waits)
            assert "refusals" not in worker.end(done(task))
            assert stage.run("SELECT id FROM jobherd.supervisors WHERE via IS NOT NULL") == [(int(worker.session),)]


def test_gateway_stopped_for_longer_than_the_lease_records_no_late_result(stage: Stage, client: Client):
    served, _other = serve(stage, lease="6s", gateway_lease="5s"), serve(stage, lease="6s")
    worker = client.stream(served.where)
    worker.hello()
    job, later = served.enqueue("l:stopped"), served.enqueue("l:later")
    task, _ = worker.task("l:stopped"), worker.task("l:later")
    worker.beat()  # the gateway has now recorded that the client read both
    gateway = int(served.fleet.said("gateway is ready")[-1]["pid"])
    os.kill(gateway, signal.SIGSTOP)
    worker.results(done(task))
    stage.wait(lambda: "running" not in stage.census([job, later]), "the end of the session")
    assert "its remote worker was lost" in str(stage.job(job))
    os.kill(gateway, signal.SIGCONT)
    assert worker.status()[0] in {"ABORTED", "UNAVAILABLE"}
    assert stage.census([job, later]) == {"retrying": 2}, "the late result changed nothing"
    again = client.stream(served.where, patient=True)
    again.send(hello={"session": worker.session, "held": [ref(task)]})
    assert again.status()[0] == "NOT_FOUND"


def test_draining_supervisor_waits_for_the_results_of_remote_workers(stage: Stage, client: Client):
    served = serve(stage)
    worker, idle = client.stream(served.where), client.stream(served.where)
    worker.hello()
    idle.hello()
    job = served.enqueue("l:drain")
    task = worker.task("l:drain")
    waits = idle.ready("l:drain")
    served.fleet.signal(signal.SIGTERM)
    assert worker.expect("drain")
    assert idle.expect("drain")
    assert idle.tasks(waits) == []
    late = client.stream(served.where)
    late.send(hello={})
    assert late.status() == ("UNAVAILABLE", "the gateway is draining")
    assert served.fleet.code is None
    assert "refusals" not in worker.end(done(task))
    assert served.fleet.wait_exit() == 0
    assert stage.state(job) == "completed"
    assert not served.fleet.said("gets SIG")
