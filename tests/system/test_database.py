"""The database becomes unavailable and is available again.

The same processes continue, every job ends once, and the log stays short.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.sql.migrate import migrate
from tests.support.fleet import Stage
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster, quick_place
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.gate import Gate

OURS = "application_name LIKE 'jobherd:%%' AND datname = current_database()"


@pytest.fixture
def own(tmp_path: Path, gate: Gate) -> Iterator[tuple[Cluster, Stage]]:
    """A server that the test may stop, and a stage on it."""
    with Cluster(place=quick_place()) as cluster, cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Stage(dsn, tmp_path) as stage:
            yield cluster, stage
            stage.show()


def away(fleet: Fleet, *, after: int) -> None:
    fleet.wait_log(
        lambda event: event.get("process") == "supervisor" and event["message"].startswith("the database is away"),
        after=after,
    )


def back(fleet: Fleet, *, after: int) -> None:
    fleet.wait_log(
        lambda event: event.get("process") == "supervisor" and event["message"] == "the database is there", after=after
    )


@pytest.mark.promise("C26")
def test_stop_or_kill_of_the_database_server_costs_no_process_and_no_job(own: tuple[Cluster, Stage], gate: Gate):
    cluster, stage = own
    fleets = [stage.run_fleet(workers=2, db_retry_initial="0.1s") for _ in range(2)]
    before = [fleet.workers() | {-1: fleet.maintenance()} for fleet in fleets]
    supervisors = stage.run("SELECT id FROM jobherd.supervisors ORDER BY id")
    for how in ("fast", "kill"):
        ends_meanwhile, ends_after = (
            stage.enqueue("t:gate", f'{{"label": "{how}-{when}"}}') for when in ("meanwhile", "after")
        )
        meanwhile, after = gate.wait_arrival(f"{how}-meanwhile"), gate.wait_arrival(f"{how}-after")
        # A claim does not wait for its fsync. A server that is killed before one loses the claim,
        # and the job runs again, as tests/models/claim.pml shows. This test is about claims that
        # are on disk.
        stage.connection.execute("CHECKPOINT")
        marks = [len(fleet.log) for fleet in fleets]
        cluster.kill() if how == "kill" else cluster.stop("fast")
        for fleet, mark in zip(fleets, marks, strict=True):
            away(fleet, after=mark)
        meanwhile.open("meanwhile")
        holder = next(fleet for fleet in fleets if meanwhile.pid in fleet.workers().values())
        mark = marks[fleets.index(holder)]
        holder.wait_log(
            lambda event: (
                event.get("process", "").startswith("worker") and event["message"].startswith("the database is away")
            ),
            after=mark,
        )
        cluster.start()
        stage.reconnect()
        for fleet, mark in zip(fleets, marks, strict=True):
            back(fleet, after=mark)
        assert stage.wait_state(ends_meanwhile, "completed")["result"] == "meanwhile"
        following = stage.enqueue("t:noop")
        stage.wait_state(following, "completed")
        after.open("after")
        assert stage.wait_state(ends_after, "completed")["result"] == "after"
        for job in (ends_meanwhile, ends_after):
            assert (stage.job(job)["attempts"], stage.runs(job)) == (1, 1)
        for fleet, mark in zip(fleets, marks, strict=True):
            # Each process with a session logs one line when the database is away and one when it is back;
            # the supervisor logs a few more.
            assert len(fleet.log) - mark <= 2 * 4 + 6, fleet.text()
            assert not fleet.said(lambda event: "traceback" in event or "raw" in event, after=mark)
    assert [fleet.workers() | {-1: fleet.maintenance()} for fleet in fleets] == before, "the same processes"
    assert stage.run("SELECT id FROM jobherd.supervisors ORDER BY id") == supervisors, "no supervisor lost its lease"
    assert stage.completed_twice() == []
    assert [fleet.stop() for fleet in fleets] == [0, 0]


def test_exclusive_job_stops_before_its_lease_expires_and_an_ordinary_job_continues(
    own: tuple[Cluster, Stage], gate: Gate
):
    cluster, stage = own
    # The worker stops the job when a fifth of the lease is left. If a busy machine delays it for longer, it is killed.
    fleet = stage.run_fleet(workers=2, lease="30s", db_retry_initial="0.1s")
    exclusive, ordinary = (
        stage.enqueue("t:exclusive", '{"label": "exclusive"}'),
        stage.enqueue("t:gate", '{"label": "ordinary"}'),
    )
    alone, other = gate.wait_arrival("exclusive"), gate.wait_arrival("ordinary")
    cluster.stop("fast")
    alone.wait_gone()
    other.open("went on")
    cluster.start()
    stage.reconnect()
    assert stage.wait_state(ordinary, "completed")["result"] == "went on"
    gate.wait_arrival("exclusive").open()
    row = stage.wait_state(exclusive, "completed")
    assert (row["attempts"], row["crashes"], row["history"][0]["outcome"]) == (1, 0, "abandoned")
    assert fleet.stop() == 0


@pytest.mark.promise("C26")
def test_repeated_loss_of_every_session_under_load_costs_no_worker_and_no_job(stage: Stage, gate: Gate):
    fleets = [stage.run_fleet(workers=2, claim_size=3, db_retry_initial="0.1s") for _ in range(2)]
    before = [fleet.workers() for fleet in fleets]
    long = stage.enqueue("t:gate", '{"label": "long"}')
    arrival = gate.wait_arrival("long")
    jobs = [
        row[0]
        for row in stage.run("""SELECT jobherd.enqueue('t:spin', '{"seconds": 0.002}') FROM generate_series(1, 900)""")
    ]
    done = "SELECT count(*) FROM t_trans WHERE place = 'history' AND op = 'INSERT'"
    for number in range(1, 5):
        stage.wait(lambda: stage.call(done) >= number * 150, "some jobs to be done")  # noqa: B023
        assert stage.call(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OURS}") >= 2
    stage.wait_all(jobs, "completed")
    arrival.open("survived")
    row = stage.wait_state(long, "completed")
    assert (row["attempts"], row["result"]) == (1, "survived")
    assert stage.completed_twice() == []
    assert [fleet.workers() for fleet in fleets] == before
    following = stage.enqueue("t:noop")
    stage.wait_state(following, "completed")
    assert [fleet.stop() for fleet in fleets] == [0, 0]


@pytest.mark.promise("C8", "C26")
def test_supervisor_started_before_its_database_waits_for_it(own: tuple[Cluster, Stage]):
    cluster, stage = own
    cluster.stop()
    fleet = stage.start(workers=1, db_retry_initial="0.1s")
    fleet.wait_log("the database does not answer")
    cluster.start()
    stage.reconnect()
    fleet.wait_ready(1)
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")
    cluster.stop()
    away(fleet, after=0)
    assert fleet.stop() == 0, "the supervisor also exits without a database"
    fleet.wait_gone()


def test_outcome_recorded_while_partitions_are_created_goes_to_a_new_partition(empty_database: str):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection)
    with Queue(empty_database) as queue, psycopg.connect(empty_database) as maintenance:
        child = queue.child()
        job = queue.enqueue("k")
        token = child.claim(1)[0].token
        maintenance.execute("SELECT * FROM jobherd.keep_partitions(40)")
        settled: list[list[int]] = []
        thread = threading.Thread(target=lambda: settled.append(child.settle(token, [job], "ok", keep=7)))
        thread.start()
        blocked = (
            "DO $$ BEGIN WHILE cardinality(pg_blocking_pids({})) = 0 LOOP PERFORM pg_sleep(0.002); END LOOP; END $$"
        )
        queue.run(blocked.format(child.connection.info.backend_pid))
        maintenance.commit()
        thread.join(LIMIT)
        assert settled == [[job]]
        assert queue.state(job) == "completed"
        assert queue.run("SELECT tableoid::regclass::text FROM jobherd.history")[0][0] != "jobherd.history_default"


def test_job_whose_outcome_waits_to_be_recorded_does_not_time_out(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, queues="default,aside:1", claim_size=2, grace="0.2s")
    with stage.connection.transaction():  # one claim gets both, and the timeout of the first starts only now
        first = stage.enqueue("t:gate", '{"label": "first"}', timeout=10)
        second = stage.enqueue("t:gate", '{"label": "second"}')
    arrival = gate.wait_arrival("first")
    with psycopg.connect(stage.dsn) as holder:
        holder.execute("SELECT FROM jobherd.running FOR UPDATE")
        # This job starts later with the same timeout. Its SIGKILL shows that the times for the deadline and
        # both signals of the first job are past, while the lock still holds up its outcome.
        ended = stage.enqueue("x:swallows", queue="aside", timeout=10)
        arrival.open("done in time")
        fleet.wait_log(lambda event: event.get("job") == ended and event["message"].endswith("gets SIGKILL"))
    gate.wait_arrival("second").open()
    row = stage.wait_state(first, "completed", "failed", "retrying")
    assert (row["state"], row["attempts"], row["result"]) == ("completed", 1, "done in time")
    stage.wait_state(second, "completed")
    # A supervisor that is delayed beyond the time for SIGTERM sends only SIGKILL.
    assert {event["job"] for event in fleet.said("gets SIG")} == {ended}


@pytest.mark.promise("A11", "C27", "E20")
def test_job_without_a_notification_is_found_at_the_next_poll(stage: Stage):
    stage.run_fleet(workers=1, poll="1s")
    stage.wait_state(stage.enqueue("t:noop"), "completed")
    stage.run("ALTER TABLE jobherd.ready DISABLE TRIGGER wake")
    for _ in range(2):
        stage.wait_state(stage.enqueue("t:noop"), "completed")
