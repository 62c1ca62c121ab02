"""Limits of each partition: exact at every commit, without delay for other partitions, and with strict order."""

from __future__ import annotations

import random
import threading
from collections import Counter

import psycopg
import pytest

from tests.sql.test_gates import gated, ids, settle
from tests.sql.test_turns import claim_and_settle, names, put
from tests.support.patience import LIMIT
from tests.support.queue import Queue

OLD = """
SELECT c.token, j.id
  FROM jobherd.claim_gated(%(supervisor)s::bigint, %(child)s::bigint, NULL, NULL, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS c
       CROSS JOIN LATERAL unnest(c.jobs) AS j"""
"""The call of a worker of an earlier version."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def test_partition_runs_no_more_jobs_than_its_limit_and_does_not_delay_others(queue):
    jobs = put(queue, flood=300, acme=3)
    queue.run("SELECT jobherd.limit_each('crm', 2)")
    children = [queue.child() for _ in range(6)]
    assert children[0].claim_raw(10)[0]["id"] is None, "the plain claim leaves the queue to claim_gated"
    held = [gated(child, 10) for child in children]
    assert sorted(job for rows in held for job in ids(rows)) == sorted(jobs["flood"][:2] + jobs["acme"][:2])
    assert [len(rows) for rows in held] == [1, 1, 1, 1, 0, 0]
    over = next(n for n, rows in enumerate(held) if ids(rows) == jobs["acme"][:1])
    settle(children[over], held[over])
    assert ids(gated(children[5])) == jobs["acme"][2:3]
    assert gated(children[4]) == []


def test_jobs_claimed_together_before_the_limit_count(queue):
    put(queue, acme=20)
    one, other = queue.child(), queue.child()
    before = one.claim(5)
    queue.run("SELECT jobherd.limit_each('crm', 2)")
    assert gated(other) == []
    assert one.settle(before[0].token, [row.id for row in before], "ok")
    assert len(gated(other)) == 1


def test_retried_job_counts_toward_the_limit_of_its_partition(queue):
    jobs = put(queue, acme=2)
    queue.run("SELECT jobherd.limit_each('crm', 1)")
    one, other = queue.child(), queue.child()
    rows = gated(one)
    assert one.settle(rows[0]["token"], ids(rows), "retry", error="why", delay=3600) == jobs["acme"][:1]
    rows = gated(other)
    assert ids(rows) == jobs["acme"][1:], "a job that waits for its retry does not delay the next one"
    queue.run("UPDATE jobherd.scheduled SET run_at = now()")
    queue.connection.execute(queue.text("maintenance/promote_due"), {"most": 10})
    assert gated(one) == []
    settle(other, rows)
    assert ids(gated(one)) == jobs["acme"][:1]


def test_strict_order_waits_for_the_retry_of_an_earlier_job(queue):
    jobs = put(queue, acme=3, globex=1)
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true)")
    one, other = queue.child(), queue.child()
    found = {names(queue, rows)[0]: rows for rows in (gated(one), gated(one))}
    assert [ids(found[name]) for name in ("acme", "globex")] == [jobs["acme"][:1], jobs["globex"]]
    one.settle(found["acme"][0]["token"], jobs["acme"][:1], "retry", error="why", delay=3600)
    assert gated(other) == []
    queue.run("UPDATE jobherd.scheduled SET run_at = now()")
    queue.connection.execute(queue.text("maintenance/promote_due"), {"most": 10})
    for job in jobs["acme"]:
        rows = gated(other)
        assert ids(rows) == [job]
        settle(other, rows)


def test_strict_order_waits_for_an_earlier_job_of_a_paused_kind(queue):
    first = queue.enqueue("b:c", queue="crm", partition="acme")
    second = queue.enqueue("a:b", queue="crm", partition="acme")
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true), jobherd.pause(kind => 'b:c')")
    child = queue.child()
    assert gated(child) == []
    assert queue.count("parked") == 1
    queue.run("SELECT jobherd.resume(kind => 'b:c')")
    queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10})
    assert [ids(claim_and_settle(child)) for _ in range(2)] == [[first], [second]]


def test_a_locked_first_job_is_not_overtaken_under_strict_order(queue):
    jobs = put(queue, acme=2)
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true)")
    child = queue.child()
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.ready WHERE id = %s FOR UPDATE", (jobs["acme"][0],))
        rows = gated(child)
        assert [(row["id"], row["queue"]) for row in rows] == [(None, "crm")], "the worker tries again soon"
        other.rollback()
    assert ids(gated(child)) == jobs["acme"][:1]


def test_claim_skips_a_partition_that_another_claim_has_locked(queue):
    put(queue, acme=2, globex=2)
    queue.run("SELECT jobherd.limit_each('crm', 2)")
    one, other = queue.child(), queue.child()
    with one.connection.transaction():
        held = set(ids(gated(one)))
        found = {name for _ in range(2) for name in names(queue, gated(other))}
        assert len(found) == 1, "not the partition whose lock is held"
        assert [(row["id"], row["queue"]) for row in gated(other)] == [(None, "crm")], "the worker tries again soon"
    assert held < set(ids(gated(other))) | held, "the limit is 2"


def test_claim_notifies_idle_workers_if_its_partition_is_below_its_limit(queue):
    """A worker that found the partition locked may be idle by now."""
    put(queue, acme=3)
    queue.run("SELECT jobherd.limit_each('crm', 2)")
    with psycopg.connect(queue.dsn, autocommit=True) as listener:
        listener.execute("LISTEN jobherd_jobs")
        for child in (children := [queue.child(), queue.child()]):
            child.connection.execute("SET jobherd.sleeps = 'yes'")
        gated(children[0])
        assert len(list(listener.notifies(timeout=LIMIT, stop_after=1))) == 1
        gated(children[1])
        queue.run("SELECT pg_notify('jobherd_jobs', 'end')")
        assert [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)] == ["end"], (
            "the partition is full"
        )


def test_worker_that_moves_to_another_partition_notifies_idle_workers(queue):
    """Another worker may be idle by now, because it found this partition at its limit and the other one locked."""
    jobs = put(queue, acme=2, globex=1)  # their lanes begin with 8 and 5
    queue.run("SELECT jobherd.limit_each('crm', 1)")
    child = queue.child()
    child.connection.execute(
        "SELECT set_config('jobherd.sleeps', 'yes', false), set_config(jobherd.turn_setting('crm'), '7 0', false)"
    )
    with psycopg.connect(queue.dsn, autocommit=True) as listener:
        listener.execute("LISTEN jobherd_jobs")
        rows = gated(child)
        assert ids(rows) == jobs["acme"][:1]
        settle(child, rows)
        assert ids(gated(child, left_queue="crm", left_kind="a:b")) == jobs["globex"]
        assert [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)] == ["crm"]


def test_worker_with_a_new_session_notifies_idle_workers(queue):
    """The new session does not store which partition the worker's last settlement freed."""
    jobs = put(queue, acme=2, globex=1)
    queue.run("SELECT jobherd.limit_each('crm', 1)")
    child = queue.child()
    child.connection.execute("SELECT set_config(jobherd.turn_setting('crm'), '7 0', false)")
    rows = gated(child)
    assert ids(rows) == jobs["acme"][:1]
    settle(child, rows)
    child.connection.execute("RESET ALL")
    child.connection.execute("SET jobherd.sleeps = 'yes'")
    with psycopg.connect(queue.dsn, autocommit=True) as listener, psycopg.connect(queue.dsn) as other:
        listener.execute("LISTEN jobherd_jobs")
        other.execute("SELECT jobherd.lock_lane(jobherd.lane_of('acme'))")
        assert ids(gated(child, left_queue="crm", left_kind="a:b")) == jobs["globex"]
        assert [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)] == ["crm"]


def test_claim_with_conditions_honors_partition_limits(queue):
    put(queue, acme=3)
    queue.run("SELECT jobherd.limit_each('crm', 1), jobherd.fair('fair')")
    fair = queue.enqueue_many("a:b", 2, queue="fair", partition="x")
    one, other = queue.child(), queue.child()
    found = [gated(child, 10, narrowed=True, served=["crm", "fair"]) for child in (one, other, one)]
    assert [len(rows) for rows in found] == [1, 2, 0]
    assert ids(found[1]) == fair


def test_tenant_role_cannot_exceed_its_limit_by_naming_other_partitions(queue):
    """All jobs of the role are in its tenant's partition, which has a limit of 1."""
    queue.run("DROP ROLE IF EXISTS jobherd_test_lanes")
    queue.run("CREATE ROLE jobherd_test_lanes")
    queue.run("SELECT jobherd.grant_tenant('jobherd_test_lanes', 'acme'), jobherd.limit_each('crm', 1)")
    try:
        queue.run("SET ROLE jobherd_test_lanes")
        for n in range(5):
            queue.enqueue("a:b", queue="crm", partition=f"other{n}")
        queue.run("RESET ROLE")
        assert [len(gated(queue.child())) for _ in range(3)] == [1, 0, 0]
    finally:
        queue.run("RESET ROLE")
        queue.run("SELECT jobherd.revoke_tenant('jobherd_test_lanes', 'acme')")
        queue.run("DROP ROLE jobherd_test_lanes")


@pytest.mark.parametrize("each", [1, 2])
def test_partition_never_runs_more_committed_jobs_than_its_limit(queue, each):
    """Eight workers, two of an earlier version, claim, roll back, settle and retry while a watcher counts."""
    most = 8 if each == 1 else 12
    put(queue, **{f"p{n}": 60 for n in range(most)})
    queue.run("SELECT jobherd.limit_each('crm', %s, strict => %s)", each, each == 1)
    children = [queue.child() for _ in range(8)]
    failures: list[BaseException] = []
    looks: Counter[int] = Counter()
    done = threading.Event()

    def work(child, seed):
        dice = random.Random(seed)
        try:
            while True:
                with child.connection.transaction() as transaction:
                    if seed < 2:
                        rows = [
                            {"token": token, "id": job}
                            for token, job in child.connection.execute(OLD, child.parameters(10)).fetchall()
                        ]
                    else:
                        rows = [row for row in gated(child) if row["id"] is not None]
                    if dice.random() < 0.2:
                        raise psycopg.Rollback(transaction)
                if not rows and not queue_left(child):
                    return
                if rows and transaction.status is transaction.Status.COMMITTED:
                    outcome = "retry" if dice.random() < 0.1 else "ok"
                    child.settle(rows[0]["token"], ids(rows), outcome, error="why", delay=0)
        except BaseException as problem:  # noqa: BLE001
            failures.append(problem)

    def queue_left(child):
        return child.connection.execute(
            "SELECT EXISTS (SELECT FROM jobherd.ready) OR EXISTS (SELECT FROM jobherd.running)"
        ).fetchone()[0]

    def look():
        with psycopg.connect(queue.dsn, autocommit=True) as connection:
            while not done.is_set():
                for lane, count in connection.execute(
                    "SELECT j.lane, count(*) FROM jobherd.running, unnest(jobs) AS j GROUP BY 1"
                ).fetchall():
                    looks[count] += 1
                    if count > each:
                        failures.append(AssertionError(f"{count} jobs of {lane} run"))

    threads = [threading.Thread(target=work, args=(child, seed)) for seed, child in enumerate(children)]
    watcher = threading.Thread(target=look)
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert not failures, failures[0]
    assert looks[each], "the limit was reached"
    assert queue.run("SELECT count(*) FROM jobherd.jobs WHERE state = 'completed'") == [(60 * most,)]
    if each == 1:
        # Tokens grow: the last attempts of a partition's jobs began in the order of their ids.
        order = queue.run("SELECT partition, array_agg(id ORDER BY token) FROM jobherd.jobs GROUP BY 1")
        assert all(jobs == sorted(jobs) for _, jobs in order)


def test_jobs_claimed_before_the_limit_count_as_long_as_they_run(queue):
    put(queue, acme=20)
    one, other = queue.child(), queue.child()
    one.claim(5)
    queue.run("SELECT jobherd.limit_each('crm', 2)")
    assert queue.run(queue.text("maintenance/end_pauses"))[0][3] is True, "maintenance has not seen the limit"
    queue.run(queue.text("maintenance/mark_limits_seen"))
    assert queue.run(queue.text("maintenance/end_pauses"))[0][3] is False
    queue.run("UPDATE jobherd.gates SET seen_at = seen_at - interval '3 h'")
    queue.run("UPDATE jobherd.running SET claimed_at = claimed_at - interval '4 h'")
    assert gated(other) == []


def test_search_through_partitions_that_all_wait_ends(queue):
    """Otherwise each idle worker would search again four times a second as long as the partitions wait."""
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true)")
    queue.run(
        "INSERT INTO jobherd.ready (kind, queue, payload, lane) SELECT 'a:b', 'crm', '{}', jobherd.lane_of(n::text) FROM generate_series(1, 1200) AS n"
    )
    queue.run(
        "INSERT INTO jobherd.scheduled (kind, queue, payload, lane, attempts, run_at)"
        " SELECT 'a:b', 'crm', '{}', jobherd.lane_of(n::text), 1, now() + interval '1 h' FROM generate_series(1, 1200) AS n"
    )
    child = queue.child()
    answers = [[(row["id"], row["queue"]) for row in gated(child)] for _ in range(4)]
    assert [(None, "crm")] in answers, "500 partitions are searched at a time"
    assert answers[3] == [] or answers[2] == []
    queue.run("DELETE FROM jobherd.scheduled WHERE lane = jobherd.lane_of('7')")
    assert any(ids(gated(child)) for _ in range(4)), "the next search finds the free partition"


@pytest.mark.parametrize("where", ["retrying", "set aside"])
def test_cancellation_of_a_job_that_strict_order_waited_for_wakes_idle_workers(queue, where):
    first = queue.enqueue("b:c", queue="crm", partition="acme")
    second = queue.enqueue("a:b", queue="crm", partition="acme")
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true)")
    child = queue.child()
    if where == "retrying":
        rows = gated(child)
        child.settle(rows[0]["token"], [first], "retry", error="why", delay=3600)
    else:
        queue.run("SELECT jobherd.pause(kind => 'b:c')")
    assert gated(child) == []
    with (
        psycopg.connect(queue.dsn, autocommit=True) as listener,
        psycopg.connect(queue.dsn, autocommit=True) as operator,
    ):
        listener.execute("LISTEN jobherd_jobs")
        operator.execute("SET jobherd.sleeps = 'yes'")
        assert operator.execute("SELECT jobherd.cancel(%s)", (first,)).fetchone() == ("cancelled",)
        assert "crm" in [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)]
    assert ids(gated(child)) == [second]


def test_advisory_locks_of_another_session_do_not_block_a_partition(queue):
    put(queue, acme=1)
    queue.run("SELECT jobherd.limit_each('crm', 1)")
    with psycopg.connect(queue.dsn) as stranger:
        stranger.execute("SELECT pg_advisory_lock(hashtextextended('jobherd lane crm ' || jobherd.lane_of('acme'), 0))")
        assert len(gated(queue.child())) == 1


def test_no_index_of_running_uses_the_column_jobs(queue):
    """Otherwise settling a part of a claim could not be a HOT update."""
    assert (
        queue.run(
            "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'jobherd.running'::regclass"
            " AND pg_get_indexdef(indexrelid) ~ 'jobs'"
        )
        == []
    )
