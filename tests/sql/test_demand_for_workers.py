"""The number that an autoscaler reads: as many workers as the jobs need, and at least those that are busy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.queue import Queue

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def demand(queue, queues=None):
    return queue.run("SELECT jobherd.demand_for_workers(%s)", queues)[0][0]


def test_no_worker_is_needed_without_due_jobs(queue):
    queue.enqueue("a:b", run_at=LATER)
    assert demand(queue) == 0


def test_waiting_jobs_and_busy_workers_both_count(queue):
    queue.enqueue_many("a:b", 5)
    child = queue.child()
    assert demand(queue) == 5
    assert len(child.claim(2)) == 2
    assert demand(queue) == 3 + 1, "one worker has claimed two"
    assert len(queue.child().claim(10)) == 3
    assert demand(queue) == 2, "a pod whose worker is busy must not be removed"


def test_demand_counts_the_queues_that_names_and_patterns_select(queue):
    for name in ("mail", "media-a", "media-b", "other"):
        queue.enqueue("a:b", queue=name)
    assert demand(queue, ["mail"]) == 1
    assert demand(queue, ["mail", "media-*"]) == 3
    assert demand(queue, ["nothing"]) == 0
    assert demand(queue) == 4
    queue.child().claim(1, ["other"])
    assert (demand(queue, ["mail"]), demand(queue, ["other"])) == (1, 1)


def test_a_due_job_counts_before_a_maintenance_process_has_promoted_it(queue):
    job = queue.enqueue("a:b", run_at=LATER)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' WHERE id = %s", job)
    assert demand(queue) == 1
    assert demand(queue, ["other"]) == 0


def test_paused_jobs_need_no_worker(queue):
    queue.enqueue_many("a:b", 3, queue="mail")
    queue.enqueue("a:b")
    queue.run("SELECT jobherd.pause(queue => 'mail')")
    assert demand(queue) == 1
    queue.run("SELECT jobherd.pause(queue => '*')")
    assert demand(queue) == 0


def test_jobs_over_a_concurrency_limit_need_no_worker(queue):
    queue.enqueue_many("a:b", 9, queue="mail")
    queue.run("SELECT jobherd.set_limit('mail', 2)")
    assert demand(queue) == 2


@pytest.mark.parametrize(
    ("rule", "counted"),
    [("paused_at = now()", 0), ("max_running = 2, limited_at = now()", 2), ("paused_at = null", 9)],
    ids=["paused", "limited", "free again"],
)
def test_parked_jobs_count_as_far_as_the_pause_or_limit_of_their_kind_allows(queue, rule, counted):
    queue.enqueue_many("a:b", 9)
    queue.run("INSERT INTO jobherd.parked SELECT * FROM jobherd.ready")
    queue.run("DELETE FROM jobherd.ready")
    if counted < 9:
        column, value = zip(*(part.split(" = ") for part in rule.split(", ")), strict=True)
        queue.run(
            f"INSERT INTO jobherd.gates (scope, name, {', '.join(column)}) VALUES ('kind', 'a:b', {', '.join(value)})"
        )
    assert demand(queue) == counted
    assert demand(queue, ["other"]) == 0


def test_due_schedule_needs_one_worker_unless_it_is_paused(queue):
    queue.run("SELECT jobherd.schedule('nightly', kind => 'a:b', cron => '0 3 * * *')")
    queue.run("UPDATE jobherd.schedules SET asked = '{}', next_at = now() + interval '1 h'")
    assert demand(queue) == 0
    queue.run("UPDATE jobherd.schedules SET next_at = now() - interval '1 s'")
    assert demand(queue) == 1
    queue.run("UPDATE jobherd.schedules SET paused_at = now()")
    assert demand(queue) == 0


def test_readers_can_call_demand_for_workers_but_tenants_and_producers_cannot(queue, database):
    queue.run("SET client_min_messages = error")
    name = queue.connection.info.dbname
    roles = {role: f"{role}_{name}".replace("-", "_") for role in ("reader", "tenant", "producer")}
    try:
        for role in roles.values():
            queue.run(f"CREATE ROLE {role} LOGIN")
        queue.run(f"GRANT jobherd_read TO {roles['reader']}")
        queue.run(f"GRANT jobherd_enqueue TO {roles['producer']}")
        queue.run("SELECT jobherd.grant_tenant(%s, 'shop')", roles["tenant"])
        queue.enqueue("a:b", tenant="shop")
        queue.enqueue("a:b", tenant="other")
        queue.enqueue("a:b")
        for role, sees in (("reader", 3), ("tenant", None), ("producer", None)):
            with psycopg.connect(make_conninfo(database, user=roles[role]), autocommit=True) as connection:
                if sees is None:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute("SELECT jobherd.demand_for_workers(NULL)")
                else:
                    assert connection.execute("SELECT jobherd.demand_for_workers(NULL)").fetchone() == (sees,)
    finally:
        for role in roles.values():
            queue.run(f"DROP OWNED BY {role}")
            queue.run(f"DROP ROLE {role}")


def test_backlog_is_counted_up_to_10_000_jobs(queue):
    queue.run("INSERT INTO jobherd.ready (kind) SELECT 'a:b' FROM generate_series(1, 30000)")
    queue.run("ANALYZE jobherd.ready")
    assert demand(queue) == 10_000
    plan = "\n".join(
        line
        for (line,) in queue.run(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT FROM jobherd.ready r WHERE r.queue = 'default' ORDER BY r.priority, r.id LIMIT 10000"
        )
    )
    assert "ready_in_claim_order" in plan
