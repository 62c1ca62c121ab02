"""Matching of signals and waits: each statement in its own transaction, in every order."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def wait(queue, topic="a", tenant=None) -> int:
    """Create a suspended job as its worker stores it."""
    job = queue.enqueue_many("a:b", 1)[0]
    queue.run(
        "WITH j AS (DELETE FROM jobherd.ready WHERE id = %s RETURNING *) INSERT INTO jobherd.scheduled SELECT * FROM j",
        job,
    )
    queue.run("UPDATE jobherd.scheduled SET run_at = now() + interval '1 day' WHERE id = %s", job)
    queue.run("INSERT INTO jobherd.waits (job, name, topic, tenant) VALUES (%s, 'n', %s, %s)", job, topic, tenant)
    return job


def match(queue, most=1000):
    return queue.run("SELECT woken, again FROM jobherd.match_signals(%s)", most)[0]


def send(queue, topic="a") -> int:
    return queue.run("SELECT jobherd.signal(%s)", topic)[0][0]


def ready(queue) -> list[int]:
    return [row[0] for row in queue.run("SELECT id FROM jobherd.ready ORDER BY id")]


def test_signal_and_wait_match_in_either_order(queue):
    send(queue)
    assert match(queue) == (0, False)
    first = wait(queue)
    assert match(queue) == (1, False)
    second = wait(queue, "b")
    assert match(queue) == (0, False)
    send(queue, "b")
    assert match(queue) == (1, False)
    assert match(queue) == (0, False)
    assert ready(queue) == [first, second]


def test_signal_that_the_job_has_received_does_not_wake_it(queue):
    number = send(queue)
    job = wait(queue)
    queue.run(
        "INSERT INTO jobherd.steps (job, name, token, attempt, version, signal) VALUES (%s, 'm', 1, 1, 1, %s)",
        job,
        number,
    )
    assert match(queue) == (0, False)
    send(queue)
    assert match(queue) == (1, False)


def test_signal_for_a_locked_wait_is_matched_later(queue, database):
    job = wait(queue)
    assert match(queue) == (0, False)
    with psycopg.connect(database) as worker:
        worker.execute("SELECT FROM jobherd.waits FOR UPDATE")
        send(queue)
        assert match(queue) == (0, True)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_locked_job_is_woken_later(queue, database):
    job = wait(queue)
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM jobherd.scheduled FOR UPDATE")
        send(queue)
        assert match(queue) == (0, True)
    assert match(queue) == (1, False)
    assert ready(queue) == [job]


def test_signals_over_the_limit_are_matched_by_the_next_statement(queue):
    jobs = [wait(queue, str(n)) for n in range(5)]
    for n in range(5):
        send(queue, str(n))
    woken = 0
    for _ in range(10):
        got, again = match(queue, 2)
        woken += got
        if not again:
            break
    assert (woken, ready(queue)) == (5, jobs)


def test_signal_of_a_tenant_reaches_only_jobs_of_that_tenant(queue):
    theirs, ours = wait(queue, "a", "acme"), wait(queue, "a", "globex")
    queue.run("INSERT INTO jobherd.signals (topic, tenants) VALUES ('a', '{globex}')")
    assert match(queue) == (1, False)
    assert ready(queue) == [ours]
    send(queue)
    assert match(queue) == (1, False)
    assert ready(queue) == [theirs, ours]


def test_sweep_repeats_a_lost_match(queue):
    job = wait(queue)
    queue.run("UPDATE jobherd.waits SET looked = true")
    send(queue)
    queue.run("UPDATE jobherd.signals SET matched = true")
    assert match(queue) == (0, False)
    assert queue.run("SELECT last, deleted FROM jobherd.sweep_waits(NULL, 10)")[0] == (job, 0)
    assert match(queue) == (1, False)


def test_signals_are_deleted_after_30_days(queue):
    old, new = send(queue), send(queue)
    queue.run("UPDATE jobherd.signals SET at = now() - interval '31 days' WHERE id = %s", old)
    queue.connection.execute(queue.text("maintenance/delete_signals"), {"most": 10})
    assert [row[0] for row in queue.run("SELECT id FROM jobherd.signals")] == [new]


def test_tenant_cannot_signal_a_job_of_another_tenant(queue):
    theirs = queue.run("SELECT jobherd.enqueue('a:b', '{}', '{\"tenant\": \"them\"}')")[0][0]
    ours = queue.run("SELECT jobherd.enqueue('a:b', '{}', '{\"tenant\": \"us\"}')")[0][0]
    queue.run("DROP ROLE IF EXISTS signal_tenant")
    queue.run("CREATE ROLE signal_tenant")
    try:
        queue.run("SELECT jobherd.grant_tenant('signal_tenant', 'us')")
        queue.run("SET ROLE signal_tenant")
        assert queue.run("SELECT jobherd.signal_job(%s, 'n')", theirs) == [(None,)]
        assert queue.run("SELECT jobherd.signal_job(%s, 'n') > 0", ours) == [(True,)]
        queue.run("SELECT jobherd.signal(%s)", f"job/{theirs}/n")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            queue.run("SELECT FROM jobherd.signals")
    finally:
        queue.run("RESET ROLE")
        queue.run("SELECT jobherd.revoke_tenant('signal_tenant', 'us')")
        queue.run("DROP OWNED BY signal_tenant")
        queue.run("DROP ROLE signal_tenant")
    assert queue.run("SELECT DISTINCT tenants FROM jobherd.signals") == [(["us"],)]


def test_role_that_may_not_enqueue_cannot_send_a_signal(queue):
    queue.run("SET ROLE jobherd_read")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        queue.run("SELECT jobherd.signal('a')")
    queue.run("SET ROLE jobherd_enqueue")
    assert queue.run("SELECT jobherd.signal('a') > 0") == [(True,)]
    queue.run("RESET ROLE")
