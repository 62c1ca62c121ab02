"""Streams that break at each boundary of a message, and networks that are silent in one direction."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.gateway.conftest import serve
from tests.gateway.remote import done, ref
from tests.gateway.working import Working
from tests.support.fleet import Stage
from tests.support.message_proxy import MessageProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.conftest import Served
    from tests.gateway.remote import Client
    from tests.support.lending import Lending

UP = ("hello", "ready", "results", "heartbeat", "release")
DOWN = ("hello_ack", "tasks", "result_ack", "heartbeat_ack", "cancel", "release_rest")
CUTS = {
    f"cut:{way}_{kind}_{'after' if arrives else 'before'}": (way, kind, arrives)
    for way, kinds in (("up", UP), ("down", DOWN))
    for kind in kinds
    for arrives in (False, True)
}
"""For each kind of job: the message at which the stream of its worker is cut, and whether that message arrives."""
SESSIONS = "SELECT count(*) FROM jobherd.supervisors WHERE via IS NOT NULL"


@pytest.fixture(scope="module")
def patient(staged: Lending, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A supervisor whose gateway waits 300 s for a worker to reconnect."""
    with staged.database() as dsn, Stage(dsn, tmp_path_factory.mktemp("patient"), audit=False) as stage:
        yield serve(stage, gateway_linger="300s", gateway_lease="300s")
        stage.show()


def enqueue(served: Served, kind: str, *payloads: dict[str, object]) -> list[int]:
    """Enqueue jobs in one transaction, so that one claim gets them all."""
    with served.stage.connection.transaction():
        return [served.enqueue(kind, json.dumps(each)) for each in payloads]


@pytest.fixture(scope="module", autouse=True)
def silenced(patient: Served) -> Iterator[tuple[Working, dict[int, int]]]:
    """Two workers whose network is silent, each in one direction, while they run a job.

    The second of each pair of jobs waits for the first. Pings need seconds to detect the silence, so
    other tests run meanwhile.
    """
    kinds = {way: f"silent:{way}" for way in ("up", "down")}
    jobs = {way: enqueue(patient, kind, {"wait": True}, {}) for way, kind in kinds.items()}
    with MessageProxy(patient.where) as up:
        down = up.entrance()
        with Working(up.where, kinds["up"], more=[(down.where, kinds["down"])]) as worker:
            for first, _ in jobs.values():
                worker.wait_started(first)
            up.silence("up")
            down.silence("down")
            for first, _ in jobs.values():
                worker.go(first)
            yield worker, dict(jobs.values())


@pytest.fixture(scope="module", autouse=True)
def stopped(staged: Lending, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Working, int]]:
    """A stopped worker with a job, at a gateway that keeps no session without a stream. Pings need seconds too."""
    with staged.database() as dsn, Stage(dsn, tmp_path_factory.mktemp("stopped"), audit=False) as stage:
        served = serve(stage, gateway_linger="0s", lease="6s")
        [job] = enqueue(served, "stopped:session", {"wait": True})
        with Working(served.where, "stopped:session") as worker:
            worker.wait_started(job)
            os.kill(worker.pid, signal.SIGSTOP)
            yield served, worker, job
        stage.show()


@pytest.mark.promise("D17")
def test_stream_cut_before_or_after_any_message_loses_no_job(patient: Served):
    """Each type of message is cut on a separate stream. Every job gets the expected state and starts once."""
    stage = patient.stage
    jobs = {kind: enqueue(patient, kind, {"wait": True, "extend": True}, {}, {}) for kind in CUTS}
    first = [one for one, *_ in jobs.values()]
    rest = [job for _, *others in jobs.values() for job in others]
    with MessageProxy(patient.where) as proxy:
        entrances = {kind: proxy.entrance() for kind in CUTS}
        for kind, (way, message, arrives) in CUTS.items():
            entrances[kind].cut(way, message, delivered=arrives)
        one, *more = [(entrance.where, kind) for kind, entrance in entrances.items()]
        with Working(*one, more=more, batch=3) as worker:
            for job in first:
                worker.wait_started(job)
            stage.run("SELECT jobherd.pause(kind => each) FROM unnest(%s::text[]) AS each", list(CUTS))
            stage.wait_all(rest, "ready")
            stage.run("SELECT jobherd.cancel(each) FROM unnest(%s::bigint[]) AS each", first)
            stage.wait_all(first, "cancelled")
            stage.run("SELECT jobherd.resume(kind => each) FROM unnest(%s::text[]) AS each", list(CUTS))
            stage.wait_all(rest, "completed")
            assert worker.stop() == 0
        for entrance in entrances.values():
            entrance.wait_cut()
    assert sorted(worker.started) == sorted(first + rest)
    assert {kind: [stage.job(job)["attempts"] for job in each] for kind, each in jobs.items()} == dict.fromkeys(
        CUTS, [1, 1, 1]
    )
    assert not patient.fleet.said("an error of Jobherd's own")


def test_session_resumes_after_its_stream_is_cut_at_a_progress_message(patient: Served, client: Client):
    with MessageProxy(patient.where) as proxy:
        for kind, entrance, arrives in (("cut:lost", proxy, False), ("cut:heard", proxy.entrance(), True)):
            entrance.cut("up", "progress", delivered=arrives)
            job = patient.enqueue(kind)
            worker = client.stream(entrance.where)
            worker.hello()
            task = worker.task(kind)
            worker.send(progress={"task": ref(task), "fraction": 0.5})
            entrance.wait_cut()
            worker.status()
            again = client.stream(entrance.where)
            assert "lost" not in again.hello(session=worker.session, held=[ref(task)])
            assert "refusals" not in again.end(done(task))
            assert patient.stage.state(job) == "completed"


def test_session_resumes_after_its_stream_is_cut_at_a_refusal(patient: Served, client: Client):
    with MessageProxy(patient.where) as proxy:
        for kind, entrance, arrives in (("refused:lost", proxy, False), ("refused:heard", proxy.entrance(), True)):
            entrance.cut("down", "refusal", delivered=arrives)
            job, later = enqueue(patient, kind, {}, {})
            worker = client.stream(entrance.where)
            worker.hello()
            task = worker.task(kind)
            refused = worker.ready("Not a kind")
            entrance.wait_cut()
            worker.status()
            told = [int(each["ready"]) for each in worker.heard("refusal")]
            assert told == ([refused] if arrives else [])
            again = client.stream(entrance.where)
            assert "lost" not in again.hello(session=worker.session, held=[ref(task)])
            assert "refusals" not in again.end(done(task))
            again.end(done(again.task(kind)))
            assert patient.stage.states([job, later]) == ["completed"] * 2
            assert {patient.stage.runs(each) for each in (job, later)} == {1}


def test_worker_cut_off_at_a_drain_continues_at_another_gateway(patient: Served):
    """One worker is cut off before the drain message arrives, one after."""
    stage = patient.stage
    drained = serve(stage, gateway_linger="300s", gateway_lease="300s")
    kinds = {"drain:lost": False, "drain:heard": True}
    jobs = {kind: enqueue(drained, kind, {"wait": True}, {}) for kind in kinds}
    first, later = ([pair[number] for pair in jobs.values()] for number in (0, 1))
    with MessageProxy(drained.where) as proxy:
        entrances = [proxy, proxy.entrance()]
        for entrance, arrives in zip(entrances, kinds.values(), strict=True):
            entrance.cut("down", "drain", delivered=arrives)
        one, *more = [
            (f"{entrance.where},{patient.where}", kind) for entrance, kind in zip(entrances, kinds, strict=True)
        ]
        with Working(*one, more=more) as worker:
            for job in first:
                worker.wait_started(job)
            drained.fleet.signal(signal.SIGTERM)
            for entrance in entrances:
                entrance.wait_cut()
            for job in first:
                worker.go(job)
            stage.wait_all(first + later, "completed")
            assert drained.fleet.wait_exit() == 0
            assert worker.stop() == 0
    assert sorted(worker.started) == sorted(first + later)
    assert {stage.runs(each) for each in first + later} == {1}


@pytest.mark.promise("D24")
def test_worker_stopped_for_longer_than_its_task_lease_changes_nothing(patient: Served):
    served, stage = patient, patient.stage
    job, kept = enqueue(served, "stopped:task", {"wait": True}, {"wait": True})
    with Working(served.where, "stopped:task", lease=1.0) as stopped:
        stopped.wait_started(job)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert stage.wait_state(job, "retrying")["error_code"] == "LEASE_EXPIRED"
        stage.retry(job)
        with Working(served.where, "stopped:task", slots=2) as other:
            other.wait_started(job)
            os.kill(stopped.pid, signal.SIGCONT)
            stopped.wait_ended(job)  # the gateway reported the task as lost
            other.go(job)
            stage.wait_state(job, "completed")
            other.go(kept)
            stage.wait_state(kept, "completed")
            assert other.stop() == 0
        assert stage.job(job)["attempts"] == 2
        assert stage.call("SELECT result FROM jobherd.history WHERE id = %s", job) == "2", (
            "the result of the second attempt"
        )
        # The worker can still run jobs.
        fresh = served.enqueue("stopped:task")
        stage.wait_state(fresh, "completed")
        assert stopped.stop() == 0
    assert stage.completed_twice() == []


def test_worker_stopped_for_longer_than_its_session_lease_changes_nothing(
    stopped: tuple[Served, Working, int],
):
    """The worker answers no ping, so its stream ends, and then the lease of its session expires."""
    served, worker, job = stopped
    stage = served.stage
    stage.wait(lambda: stage.call(SESSIONS) == 0, "the end of the session")
    assert "its remote worker was lost" in str(stage.job(job))
    stage.retry(job)
    with Working(served.where, "stopped:session") as other:
        other.wait_started(job)
        os.kill(worker.pid, signal.SIGCONT)
        worker.go(job)
        worker.wait_ended(job)
        fresh = served.enqueue("stopped:session")
        stage.wait_state(fresh, "completed")
        assert stage.state(job) == "running", "the late result changed nothing"
        other.go(job)
        assert stage.wait_state(job, "completed")["attempts"] == 2
        assert other.stop() == 0
    assert worker.stop() == 0
    assert stage.call("SELECT result FROM jobherd.history WHERE id = %s", job) == "2"
    assert stage.completed_twice() == []


def test_network_that_is_silent_in_one_direction_ends_the_stream_and_loses_no_job(
    patient: Served, silenced: tuple[Working, dict[int, int]]
):
    """The side that receives nothing detects it by its pings, and the worker resumes on a new connection."""
    worker, jobs = silenced
    patient.stage.wait_all([*jobs, *jobs.values()], "completed")
    assert worker.stop() == 0
    assert sorted(worker.started) == sorted([*jobs, *jobs.values()])
    assert all(worker.started.index(job) < worker.started.index(later) for job, later in jobs.items())
    assert {patient.stage.job(job)["attempts"] for job in worker.started} == {1}
