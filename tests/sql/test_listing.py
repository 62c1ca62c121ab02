"""Operators' changes of waiting and finished jobs, and searches whose cost does not grow with jobs that do not match."""

from __future__ import annotations

import threading

import psycopg
import pytest

from jobherd import sql
from tests.sql.test_past import DAYS, FILL, nodes
from tests.support.patience import LIMIT
from tests.support.queue import Queue

WANTED = dict.fromkeys(("states", "kind", "queue", "tenant", "code", "since", "until", "text", "field", "needle"))
LOOK = WANTED | {"hidden": [], "limit": 50, "before": 2**62}


@pytest.fixture
def queue(database):
    with Queue(database) as opened:
        yield opened


# -- deleting


def test_only_a_finished_job_is_deleted_with_its_log_and_attempts(queue):
    waits, later = queue.enqueue("a:b"), queue.enqueue("a:b", delay=3600)
    runs = queue.enqueue("a:b", queue="other")
    queue.child().claim(1, ["other"])
    for number, state in ((waits, "ready"), (later, "scheduled"), (runs, "running"), (10**9, None)):
        assert queue.run("SELECT jobherd.delete(%s)", number) == [(state,)]
        assert queue.state(number) == state
    done = over_in(queue, "third")
    queue.run(
        "INSERT INTO jobherd.logs (job, token, attempt, at, drop_on, output) VALUES (%s, 1, 1, now(), current_date + 9, 'x')",
        done,
    )
    queue.run(
        "INSERT INTO jobherd.attempts (job, token, attempt, outcome, finished_at, drop_on) VALUES (%s, 1, 1, 'retry', now(), current_date + 9)",
        done,
    )
    assert queue.run("SELECT jobherd.delete(%s)", done) == [("deleted",)]
    assert queue.state(done) is None
    assert queue.run("SELECT (SELECT count(*) FROM jobherd.logs), (SELECT count(*) FROM jobherd.attempts)") == [(0, 0)]
    assert queue.run("SELECT jobherd.delete(%s)", done) == [(None,)]


def over_in(queue, name):
    child = queue.child()
    number = queue.enqueue("a:b", queue=name)
    child.settle(child.claim(1, [name])[0].token, [number], "ok")
    return number


# -- changing priority and time


def test_a_waiting_job_is_claimed_by_its_new_priority(queue):
    first, second = queue.enqueue("a:b"), queue.enqueue("a:b")
    assert queue.run("SELECT jobherd.reprioritize(%s, -7)", second) == [("ready",)]
    later = queue.enqueue("a:b", delay=3600)
    assert queue.run("SELECT jobherd.reprioritize(%s, 9)", later) == [("scheduled",)]
    assert queue.job(later)["priority"] == 9
    child = queue.child()
    assert [job.id for job in child.claim(1)] == [second]
    assert queue.run("SELECT jobherd.reprioritize(%s, 1)", second) == [("running",)]
    assert queue.job(second)["priority"] == -7
    assert [job.id for job in queue.child().claim(1)] == [first]
    assert queue.run("SELECT jobherd.reprioritize(%s, 1)", 10**9) == [(None,)]
    assert queue.run("SELECT jobherd.reprioritize(%s, 1)", over_in(queue, "x")) == [("completed",)]
    for bad in (40_000, -40_000, None):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="priority"):
            queue.run("SELECT jobherd.reprioritize(%s, %s::integer)", first, bad)


def test_waiting_job_can_be_rescheduled(queue):
    now, later = queue.enqueue("a:b"), queue.enqueue("a:b", delay=3600, priority=3)
    assert queue.run("SELECT jobherd.reschedule(%s, now() + interval '2 h')", now) == [("scheduled",)]
    assert queue.run("SELECT jobherd.reschedule(%s, now() - interval '1 s')", later) == [("ready",)]
    assert queue.states([now, later]) == ["scheduled", "ready"]
    assert queue.job(later)["priority"] == 3
    assert [job.id for job in queue.child().claim(5)] == [later]
    assert queue.run("SELECT jobherd.reschedule(%s, now())", later) == [("running",)]
    assert queue.run("SELECT jobherd.reschedule(%s, now())", 10**9) == [(None,)]
    queue.run("SET timezone = 'Etc/GMT+11'")
    for bad in ("infinity", "9999-01-01", "9000-01-01T00:00Z", "1900-01-01T00:00Z", None):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="run_at"):
            queue.run("SELECT jobherd.reschedule(%s, %s::timestamptz)", now, bad)


def test_rescheduling_to_an_earlier_time_notifies_the_maintenance_processes(queue):
    """Otherwise a process that sleeps until the first job is due would sleep past the new time."""
    later = queue.enqueue("a:b", delay=3600)
    with psycopg.connect(queue.dsn, autocommit=True) as ear:
        ear.execute(f"LISTEN {sql.CHANNEL}")
        queue.run("SELECT jobherd.reschedule(%s, now() + interval '1 min')", later)
        assert [note.payload for note in ear.notifies(timeout=LIMIT, stop_after=1)] == ["@due"]


@pytest.mark.parametrize("call", ["jobherd.reprioritize(%s, 5)", "jobherd.reschedule(%s, now() + interval '1 h')"])
def test_job_in_an_uncommitted_claim_is_not_changed(queue, call):
    """The claim has locked the row and will commit.

    After waiting for the lock, the call finds the job running.
    """
    number = queue.enqueue("a:b")
    child = queue.child()
    answers = []
    with psycopg.connect(queue.dsn, autocommit=True) as other:
        with child.connection.transaction():
            child.claim(1)
            thread = threading.Thread(
                target=lambda: answers.append(other.execute(f"SELECT {call}", [number]).fetchone()[0])
            )
            thread.start()
            while thread.is_alive() and not queue.run("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
        thread.join(LIMIT)
    assert answers == ["running"]
    assert (
        queue.run("SELECT count(*) FROM jobherd.ready") == queue.run("SELECT count(*) FROM jobherd.scheduled") == [(0,)]
    )
    assert queue.state(number) == "running"


def test_audit_entry_of_a_change_to_a_job_names_its_actor(queue):
    first, second = queue.enqueue("a:b"), queue.enqueue("a:b")
    queue.run("SELECT jobherd.reprioritize(%s, 4, 'alice', 'urgent')", first)
    queue.run("SELECT jobherd.reschedule(%s, '2030-01-01Z', 'bob')", second)
    done = over_in(queue, "x")
    queue.run("SELECT jobherd.delete(%s, 'carol', 'not ours')", done)
    noted = queue.run("SELECT actor, action, target ->> 'job', reason FROM jobherd.audit ORDER BY id")
    assert noted == [
        ("alice", "reprioritize", str(first), "urgent"), ("bob", "reschedule", str(second), None), ("carol", "delete", str(done), "not ours"),
    ]  # fmt: skip


# -- searching


def plan_of(queue, steer, name, parameters):
    with queue.connection.transaction(force_rollback=True):
        queue.connection.execute(queue.text(steer), {"milliseconds": 60_000})
        (found,) = queue.connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queue.text(name), parameters
        ).fetchone()
        return found[0]["Plan"]


@pytest.fixture(scope="module")
def long_past(cluster, template):
    with cluster.database(template=template) as dsn, Queue(dsn) as queue:
        queue.connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": DAYS + 1, "most": None})
        queue.connection.execute(FILL, {"jobs": 200_000, "days": DAYS})
        queue.run("UPDATE jobherd.history SET kind = 'rare:one', queue = 'rare' WHERE id IN (70000, 150001)")
        queue.run("VACUUM ANALYZE jobherd.history")
        yield queue


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "rare:one"},
        {"queue": "rare"},
        {"states": ["expired"]},
        {"tenant": "acme"},
        {"code": "NONE"},
        {"kind": "no:such"},
    ],
)
def test_search_for_rare_jobs_reads_less_than_half_of_the_history(long_past, wanted):
    parameters = LOOK | {"low": 0, "high": 10**6, "most": 20_000} | wanted
    plan = plan_of(long_past, "dashboard/force_block_summaries", "dashboard/list_finished_ranges", parameters)
    pages = long_past.run(
        "SELECT sum(pg_relation_size(inhrelid)) / 8192 FROM pg_inherits WHERE inhparent = 'jobherd.history'::regclass"
    )[0][0]
    found = sum(node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0) for node in [plan])
    names = {node.get("Index Name", "") for node in nodes(plan)}
    print(wanted, found, "of", pages, names)
    assert found < pages / 2
    assert not any(name.endswith("_id_idx") for name in names), "the search must not scan by id"
    assert "Seq Scan" not in {
        node["Node Type"] for node in nodes(plan) if node.get("Relation Name", "").startswith("history_2")
    }


def test_search_of_waiting_jobs_stops_at_its_scan_limit(queue):
    queue.enqueue_many("a:b", 5_000)
    queue.run("ANALYZE jobherd.ready")
    for wanted in ({"kind": "no:such"}, {"text": "%no such%"}, {"states": ["retrying"]}):
        plan = plan_of(queue, "dashboard/force_id_order", "dashboard/list_live", LOOK | {"scan": 100} | wanted)
        for node in nodes(plan):
            if node.get("Relation Name") == "ready":
                assert node["Node Type"].startswith("Index"), node
                assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 101, node
    rows = queue.connection.execute(
        queue.text("dashboard/list_live"), LOOK | {"scan": 100, "kind": "no:such"}
    ).fetchall()
    assert [row[0] for row in rows] == [4_901], "the search returns how far it has read"
