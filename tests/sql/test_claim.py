"""Claims: the order of jobs, the claim size, the fencing token and the cost."""

from __future__ import annotations

import json
import random

import psycopg
import pytest

from tests.support.queue import Queue, jobs_of

GUCS = ("enable_hashjoin", "enable_hashagg", "enable_material", "enable_sort", "enable_mergejoin")


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.mark.promise("C10", "C11", "E10")
def test_jobs_are_claimed_by_priority_then_first_in_first_out(queue):
    low = queue.enqueue("a:b", priority=5)
    first, second = queue.enqueue("a:b"), queue.enqueue("a:b")
    urgent = queue.enqueue("a:b", priority=-1)
    child = queue.child()
    assert [job.id for job in child.claim(10)] == [urgent, first, second, low]


@pytest.mark.promise("A33", "E9")
def test_claim_returns_at_most_the_claim_size_under_any_query_plan(queue):
    queue.enqueue_many("a:b", 50)
    child = queue.child()
    for setting in GUCS:
        child.connection.execute(f"SET {setting} = off")
    assert len(child.claim(1)) == 1
    assert len(child.claim(7)) == 7
    assert queue.count("ready") == 42


@pytest.mark.promise("A6", "A33", "A34", "C39", "E1", "E12")
def test_concurrent_claims_of_two_workers_share_no_job(queue):
    queue.enqueue_many("a:b", 20)
    one, other = queue.child(), queue.child()
    with one.connection.transaction():
        mine = one.claim(5)
        theirs = other.claim(20)
    assert len(mine) == 5
    assert len(theirs) == 15
    assert not {job.id for job in mine} & {job.id for job in theirs}


@pytest.mark.promise("C17", "E26")
def test_claim_takes_jobs_of_one_queue_in_the_served_order(queue):
    queue.enqueue("a:b", queue="slow", priority=-9)
    queue.enqueue("a:b", queue="fast")
    queue.enqueue("a:b", queue="fast")
    child = queue.child()
    assert {job.queue for job in child.claim(10, served=["fast", "slow"])} == {"fast"}
    assert {job.queue for job in child.claim(10, served=["fast"])} == set()
    assert {job.queue for job in child.claim(10)} == {"slow"}


def test_claim_without_named_queues_takes_the_most_urgent_job_of_all_queues(queue):
    queue.enqueue("a:b", queue="aaa", priority=1)
    urgent = queue.enqueue("a:b", queue="zzz", priority=0)
    assert [job.id for job in queue.child().claim(1)] == [urgent]


def test_claim_skips_a_paused_queue_until_it_is_resumed(queue):
    queue.enqueue("a:b", queue="held")
    queue.run("SELECT jobherd.pause('held', 'because')")
    child = queue.child()
    assert child.claim(1) == []
    queue.run("SELECT jobherd.resume('held')")
    assert len(child.claim(1)) == 1


def test_claim_returns_the_time_left_until_each_job_expires(queue):
    late = queue.enqueue("a:b", expires_at="2020-01-01")
    good = queue.enqueue("a:b", expires_at="2999-01-01")
    ever = queue.enqueue("a:b")
    jobs = {job.id: job.good_for for job in queue.child().claim(10)}
    assert jobs[late] < 0 < jobs[good]
    assert jobs[ever] is None


@pytest.mark.parametrize(("short", "waits"), [(None, "on"), ([], "on"), (["a:b"], "on"), (["a:b", "a:c"], "off")])
def test_claim_waits_for_its_fsync_unless_all_its_jobs_are_short(queue, short, waits):
    queue.enqueue("a:b")
    queue.enqueue("a:c")
    child = queue.child()
    with psycopg.connect(queue.dsn) as connection:
        assert connection.execute(queue.text("claim/claim_jobs"), {**child.parameters(2), "short": short}).fetchall()
        assert connection.execute("SHOW synchronous_commit").fetchone() == (waits,)
        connection.rollback()
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_job_marked_alone_is_claimed_separately(queue):
    first, alone, last = queue.enqueue("a:b"), queue.enqueue("a:b"), queue.enqueue("a:b")
    queue.run("UPDATE jobherd.ready SET alone = true WHERE id = %s", alone)
    child = queue.child()
    assert [job.id for job in child.claim(10)] == [first]
    assert [job.id for job in child.claim(10)] == [alone]
    assert [job.id for job in child.claim(10)] == [last]


@pytest.mark.promise("E11", "E18")
def test_each_claim_counts_an_attempt_and_raises_the_fencing_token(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert job.attempts == 1
    child.settle(job.token, [job.id], "retry", delay=0)
    (again,) = child.claim(1)
    assert again.attempts == 2
    assert again.token > job.token


def test_worker_claims_nothing_if_its_supervisor_is_unknown_or_its_lease_has_expired(queue):
    queue.enqueue("a:b")
    child = queue.child()
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 second'")
    assert child.claim(1) == []
    queue.run("DELETE FROM jobherd.supervisors")
    assert child.claim(1) == []
    assert queue.count("ready") == 1


def test_claim_distinguishes_locked_rows_from_an_empty_queue(queue):
    queue.enqueue("a:b")
    one, other = queue.child(), queue.child()
    with one.connection.transaction():
        one.claim(1)
        assert other.claim_raw(1)[0]["id"] is None
    assert other.claim_raw(1) == []


def test_queue_with_locked_rows_does_not_starve_other_queues(queue):
    queue.enqueue("a:b", queue="held", priority=-1)
    other = queue.enqueue("a:b", queue="free")
    child = queue.child()
    with psycopg.connect(queue.dsn) as console:
        console.execute("SELECT * FROM jobherd.ready WHERE queue = 'held' FOR UPDATE")
        (row,) = child.claim_raw(1)
        assert (row["id"], row["queue"]) == (None, "held")
        (row,) = jobs_of(
            child.connection.execute(queue.text("claim/claim_jobs"), {**child.parameters(1), "avoided": ["held"]})
        )
        assert row["id"] == other


def explain(queue, child, wanted=10):
    """Return the shape of the claim's plan and the buffers it touched; roll the claim back."""
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        connection.execute("SET LOCAL enable_seqscan = off")
        row = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queue.text("claim/claim_jobs"), child.parameters(wanted)
        ).fetchone()
        connection.rollback()
    plan = row[0][0]["Plan"] if not isinstance(row[0], str) else json.loads(row[0])[0]["Plan"]

    def shape(node):
        return (node["Node Type"], node.get("Index Name"), [shape(child) for child in node.get("Plans", [])])

    return shape(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.promise("E4", "E23")
def test_claim_costs_the_same_with_200_and_200_000_ready_and_scheduled_jobs(queue):
    """Measured right after the bulk load, without ANALYZE, and again after ANALYZE."""
    child = queue.child()
    queue.enqueue_many("a:b", 200)
    queue.enqueue_many("a:b", 200, delay=86400)
    queue.run("VACUUM jobherd.ready")
    small = explain(queue, child)
    queue.enqueue_many("a:b", 199_800)
    queue.enqueue_many("a:b", 199_800, delay=86400)
    large = explain(queue, child)
    queue.run("ANALYZE")
    analyzed = explain(queue, child)
    assert analyzed[0] == large[0] == small[0]
    # The index is a level or two deeper; nothing else may grow.
    assert large[1] <= small[1] + 30
    assert analyzed[1] <= small[1] + 30


@pytest.mark.parametrize("seed", range(8))
def test_claim_job_takes_the_same_job_as_claim_jobs_with_claim_size_1(queue, seed):
    dice = random.Random(seed)
    for number in range(40):
        options = {"queue": dice.choice(["a", "b", "c"]), "priority": dice.choice([-1, 0, 0, 3])}
        if dice.random() < 0.2:
            options["expires_at"] = "2999-01-01"
        queue.enqueue(dice.choice(["a:b", "a:c"]), f'{{"n": {number}}}', **options)
    if dice.random() < 0.5:
        queue.run("SELECT jobherd.pause(%s)", dice.choice(["a", "b"]))
    child = queue.child()
    with psycopg.connect(queue.dsn) as locker, psycopg.connect(queue.dsn) as connection:
        locker.execute("SELECT FROM jobherd.ready WHERE random() < 0.3 FOR UPDATE")
        for _ in range(20):
            parameters = child.parameters(1) | {
                "served": dice.choice([None, ["b", "a"], ["c"]]),
                "avoided": dice.choice([None, ["a"]]),
                "short": dice.choice([None, ["a:b"]]),
            }
            found = []
            for name in ("claim/claim_jobs", "claim/claim_job"):
                rows = jobs_of(connection.execute(queue.text(name), parameters))
                waits = connection.execute("SHOW synchronous_commit").fetchone()
                moved = connection.execute("SELECT child, queue, jobs::text FROM jobherd.running").fetchall()
                connection.rollback()
                for row in rows:
                    row.pop("token"), row.pop("waited"), row.pop("good_for")
                found.append((rows, waits, moved))
            assert found[0] == found[1]


def test_claim_job_takes_nothing_under_an_expired_lease(queue):
    queue.enqueue("a:b")
    child = queue.child()
    queue.run("UPDATE jobherd.supervisors SET lease_until = clock_timestamp() - interval '1 second'")
    assert queue.connection.execute(queue.text("claim/claim_job"), child.parameters(1)).fetchall() == []


@pytest.mark.parametrize("odd", ["attempts, 32767", "crashes, 32767", "timeout, 'NaN'", "timeout, 'infinity'"])
def test_tables_reject_counts_and_timeouts_that_would_make_every_claim_fail(queue, odd):
    """A claim that fails on a row's value ends its worker. Each later worker would fail on the same row."""
    column, value = odd.split(", ")
    for table in ("ready", "scheduled"):
        with pytest.raises(psycopg.errors.CheckViolation):
            queue.run(f"INSERT INTO jobherd.{table} (kind, payload, {column}) VALUES ('t:noop', '{{}}', {value})")
    queue.run(
        "INSERT INTO jobherd.ready (kind, payload, attempts, crashes, timeout) VALUES ('t:noop', '{}', 32766, 32766, 1e300)"
    )
    [claimed] = queue.child().claim(1)
    assert claimed.attempts == 32767
