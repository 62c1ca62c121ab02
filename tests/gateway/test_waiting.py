"""A waiting Ready causes no statement, and whatever makes a job claimable wakes it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.gateway.conftest import Served, serve
from tests.gateway.remote import done, ids, result

if TYPE_CHECKING:
    from tests.gateway.remote import Client, Stream
    from tests.support.fleet import Stage

BACKENDS = """
SELECT pid, query_start, state FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE '%%gateway%%'"""


def waiting(stage: Stage, client: Client, **settings: object) -> tuple[Served, Stream]:
    """Start a supervisor whose gateway sends no periodic statements, and a worker of it."""
    served = serve(stage, poll="300s", gateway_lease="1h", **settings)
    worker = client.stream(served.where)
    worker.hello()
    return served, worker


def rest(stage: Stage, worker: Stream) -> list[tuple[object, ...]]:
    """Wait until the gateway sends no statement during 100 round trips, and return its sessions."""

    def rested() -> list[tuple[object, ...]]:
        before = stage.run(BACKENDS)
        for _ in range(100):
            worker.beat()
        return before if before == stage.run(BACKENDS) else []

    return stage.wait(rested, "a gateway that sends nothing")


@pytest.mark.promise("D11", "E6", "E24")
def test_waiting_ready_causes_no_statement_and_a_commit_wakes_it(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    number = worker.ready("w:commit")
    before = rest(stage, worker)
    for _ in range(300):  # each is a round trip: together longer than a tick
        worker.beat()
    assert stage.run(BACKENDS) == before
    with stage.connection.transaction():
        job = served.enqueue("w:commit")
        assert worker.beat()
        assert stage.run(BACKENDS) == before, "the gateway sends no statement before the commit"
    tasks = worker.tasks(number)
    assert ids(tasks) == [job]
    worker.end(*map(done, tasks))


@pytest.mark.promise("D11")
def test_waiting_ready_is_woken_by_a_due_job_a_resume_a_free_limit_and_an_abandoned_job(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    number = worker.ready("w:due")
    with stage.connection.transaction():  # no session can find the job due before the commit
        job = served.enqueue("w:due", delay=0.5)
        assert stage.state(job) == "scheduled"
    [task] = worker.tasks(number)
    assert "refusals" not in worker.end(done(task))
    # A pause blocks the Ready.
    stage.run("SELECT jobherd.pause(%s)", "remote")
    worker.expect("release_rest")
    number = worker.ready("w:pause")
    job = served.enqueue("w:pause")
    rest(stage, worker)
    assert stage.state(job) == "ready"
    assert worker.heard("tasks") == []
    stage.run("SELECT jobherd.resume(%s)", "remote")
    [task] = worker.tasks(number)
    assert "refusals" not in worker.end(done(task))
    # So does a limit.
    stage.run("SELECT jobherd.set_limit('remote', 1)")
    jobs = stage.enqueue_many("w:limit", 2, queue="remote")
    first = worker.task("w:limit")
    number = worker.ready("w:limit")
    rest(stage, worker)
    assert worker.heard("tasks") == []
    assert "refusals" not in worker.end(done(first))
    [second] = worker.tasks(number)
    assert ids([first, second]) == jobs
    assert "refusals" not in worker.end(done(second))
    # A job that the worker abandons.
    job = served.enqueue("w:back")
    task = worker.task("w:back")
    number = worker.ready("w:back")
    worker.results(result(task, abandon={}))
    [task] = worker.tasks(number)
    assert ids([task]) == [job]


def test_job_locked_by_another_session_is_claimed_soon_after_the_lock_ends(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    stage.run("SELECT jobherd.pause(%s)", "remote")
    job = served.enqueue("w:locked")
    with psycopg.connect(stage.dsn) as other:
        other.execute("SELECT FROM jobherd.ready WHERE id = %s FOR UPDATE", (job,))
        stage.run("SELECT jobherd.resume(%s)", "remote")
        number = worker.ready("w:locked")
        worker.beat()
        before = stage.run(BACKENDS)
        stage.wait(lambda: stage.run(BACKENDS) != before, "a claim")
        assert worker.heard("tasks") == []
        other.rollback()
    [task] = worker.tasks(number)
    assert ids([task]) == [job], "no poll comes in this test"
    assert "refusals" not in worker.end(done(task))


def test_rate_limit_delays_a_ready_until_the_next_token(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    stage.run("SELECT jobherd.limit('remote', '3/s', burst => 1)")
    jobs = stage.enqueue_many("w:rate", 4, queue="remote")
    tasks = []
    for _ in jobs:
        [task] = worker.tasks(worker.ready("w:rate"))
        assert "refusals" not in worker.end(done(task))
        tasks.append(task)
    assert ids(tasks) == jobs, "no poll comes in this test"
    started = [row[0] for row in stage.run("SELECT extract(epoch FROM started_at) FROM jobherd.history ORDER BY id")]
    assert started[-1] - started[0] >= 0.9
    number = worker.ready("w:rate", count=2)
    served.enqueue("w:rate")
    assert len(worker.tasks(number)) == 1


def test_claim_serves_each_filter_and_a_ready_can_be_withdrawn(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    numbers = {kind: worker.ready(kind) for kind in ("w:a", "w:b", "w:c")}
    anything = client.stream(served.where)
    anything.hello()
    assert worker.beat()
    jobs = {kind: served.enqueue(kind) for kind in ("w:c", "w:b", "w:a")}
    for kind, number in numbers.items():
        assert ids(worker.tasks(number)) == [jobs[kind]]
    number = anything.ready()
    anything.send(ready={"number": number, "count": 0})
    assert anything.tasks(number) == []
    job = served.enqueue("w:d")
    number = anything.ready()
    [task] = anything.tasks(number)
    assert ids([task]) == [job]


def test_pause_lets_a_worker_release_its_unstarted_tasks(stage: Stage, client: Client):
    served, worker = waiting(stage, client)
    stage.enqueue_many("w:given", 3, queue="remote")
    first, *_ = worker.tasks(worker.ready("w:given", count=3))
    # No Ready waits: the gateway acts because tasks are unfinished.
    stage.run("SELECT jobherd.pause(%s)", "remote")
    worker.expect("release_rest")
    worker.send(release={"claim": first["claim"], "behind_task_id": first["id"]})
    stage.wait(lambda: stage.count("ready") == 2, "the rest to be ready")
    assert "refusals" not in worker.end(done(first))
    assert served.fleet.code is None


def test_gateway_claims_again_once_its_supervisor_has_renewed_its_lease(stage: Stage, client: Client):
    served, worker = waiting(stage, client, lease="6s")
    number = worker.ready("w:lease")
    assert worker.beat()
    watching = client.watch(served.where)
    assert watching() == "SERVING"
    served.fleet.signal(signal.SIGSTOP)
    assert watching() == "NOT_SERVING", "the supervisor has no lease"
    job = served.enqueue("w:lease")
    served.fleet.signal(signal.SIGCONT)
    assert ids(worker.tasks(number)) == [job]
    assert watching() == "SERVING"
