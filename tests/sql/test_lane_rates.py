"""Rate limits of each partition: no time window has more starts than limit and burst. Other partitions are not delayed."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from tests.sql.test_gates import gated, ids, settle
from tests.sql.test_lanes import OLD
from tests.sql.test_rates import back_date, most_in_any_window, starts
from tests.sql.test_turns import put
from tests.support.patience import LIMIT
from tests.support.queue import Queue
from tests.support.remote import Gateway

FILL = """
INSERT INTO jobherd.ready (kind, queue, extras, lane)
SELECT 'a:b', 'crm', jobherd.with_partition(NULL, 'p' || n), jobherd.lane_of('p' || n) FROM generate_series(1, %s) AS n"""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def started(child, claims):
    """Claim this often and return the ids."""
    return [job for _ in range(claims) for job in starts(child)[0]]


def shut_all(queue, child, partitions):
    """Use the tokens of all these partitions, so that each has one more job that waits for the next token."""
    queue.run(FILL, partitions)
    for _ in range(partitions):
        settle(child, [row for row in gated(child, 1) if row["id"] is not None])
    queue.run(FILL, partitions)
    while (
        starts(child) != ([], None) and queue.run("SELECT count(*) FROM jobherd.buckets WHERE waiting_in IS NULL")[0][0]
    ):
        pass


def test_partition_starts_its_burst_then_a_job_for_each_token_and_delays_no_other(queue):
    jobs = put(queue, flood=9, acme=3)
    assert queue.run("SELECT jobherd.limit_each_rate('crm', '1/min', burst => 2)") == [(None,)]
    one, other = queue.child(), queue.child()
    assert one.claim_raw(10)[0]["id"] is None, "the plain claim leaves the queue to claim_gated"
    assert sorted(started(one, 2) + started(other, 2)) == sorted(jobs["flood"][:2] + jobs["acme"][:2])
    found, opens_in = starts(one)
    assert (found, 30 < opens_in <= 60) == ([], True), "a claim without a token returns the time until the next one"
    back_date(queue, 60)
    queue.run("UPDATE jobherd.buckets SET opens_at = opens_at - interval '60 s'")
    assert sorted(started(other, 3)) == sorted([jobs["flood"][2], jobs["acme"][2]])
    assert starts(one)[1] > 30, "only the partition flood waits"


@pytest.mark.parametrize("others", ["pause('other')", "set_limit('crm', 5)"])
def test_claim_of_the_last_token_returns_the_time_until_the_next_one(queue, others):
    jobs = put(queue, acme=2)
    queue.run(f"SELECT jobherd.{others}")
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/min')")
    found, opens_in = starts(queue.child())
    assert (found, 30 < opens_in <= 60) == (jobs["acme"][:1], True)
    assert starts(queue.child(), served=["other"]) == ([], None)
    queue.run("SELECT jobherd.pause('crm')")
    assert starts(queue.child()) == ([], None)


def test_partition_with_a_new_token_is_found_among_many_that_wait(queue):
    """A scan of the partitions checks 500 at a time, and would find it seconds later."""
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    child = queue.child()
    shut_all(queue, child, 1100)
    for name in ("p7", "p701", "p1003"):
        queue.run(
            "UPDATE jobherd.buckets SET used_until = now() - interval '1 s', opens_at = now() - interval '1 s'"
            " WHERE name = 'crm ' || jobherd.lane_of(%s)",
            name,
        )
        rows = gated(child)
        assert queue.run("SELECT partition FROM jobherd.jobs WHERE id = %s", rows[0]["id"]) == [(name,)]


def test_claim_wakes_idle_workers_for_other_partitions_with_new_tokens(queue):
    put(queue, acme=2, globex=2)
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    child = queue.child()
    assert len(started(child, 3)) == 2
    queue.run("UPDATE jobherd.buckets SET used_until = now() - interval '1 s', opens_at = now() - interval '1 s'")
    with psycopg.connect(queue.dsn, autocommit=True) as listener:
        listener.execute("LISTEN jobherd_jobs")
        child.connection.execute("SET jobherd.sleeps = 'yes'")
        assert len(starts(child)[0]) == 1
        assert [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)] == ["crm"]
        assert len(starts(child)[0]) == 1
        queue.run("SELECT pg_notify('jobherd_jobs', 'end')")
        assert [one.payload for one in listener.notifies(timeout=LIMIT, stop_after=1)] == ["end"]


@pytest.mark.parametrize(
    "call", ["limit_each_rate('crm', '1/h')", "limit('crm', '1/h')", "limit(kind => 'a:b', rate => '1/h')"]
)
def test_a_token_that_came_during_a_claim_is_not_missed(queue, call):
    """The claim found no token. Without a timer for the new token, the job would wait for the poll."""
    put(queue, acme=2)
    queue.run(f"SELECT jobherd.{call}")
    child = queue.child()
    assert len(started(child, 2)) == 1
    with psycopg.connect(queue.dsn) as late:
        late.execute("SELECT now()")
        queue.run("UPDATE jobherd.buckets SET used_until = clock_timestamp(), opens_at = clock_timestamp()")
        assert late.execute("SELECT jobherd.next_opening(NULL)").fetchone() == (0,)
    assert queue.run("SELECT jobherd.next_opening(NULL)") == [(None,)], "the token came before the next claim begins"


def test_partition_whose_job_is_canceled_or_over_another_limit_does_not_wait_for_a_token(queue):
    """Otherwise each claim would try this partition, and each timer would wake a worker for it."""
    (gone, _), (full, _) = (jobs := put(queue, acme=2, globex=2)).values()
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h'), jobherd.limit_each('crm', 1)")
    child = queue.child()
    assert sorted(started(child, 4)) == sorted([gone, full])
    queue.cancel(jobs["acme"][1])
    queue.run("UPDATE jobherd.buckets SET used_until = now() - interval '1 s', opens_at = now() - interval '1 s'")
    while any(row["queue"] for row in gated(child)):
        pass
    assert queue.run("SELECT count(*) FROM jobherd.buckets WHERE waiting_in IS NOT NULL") == [(0,)]
    assert starts(child) == ([], None)


@pytest.mark.parametrize("remote", [False, True])
def test_no_time_window_has_more_starts_of_a_partition_than_limit_and_burst(queue, remote):
    """Many workers claim, one as in an earlier version. Some claims are rolled back; only committed ones count."""
    rate, burst = 100, 3
    put(queue, **{f"p{n}": 400 for n in range(4)})
    queue.run("SELECT jobherd.limit_each_rate('crm', %s, burst => %s)", f"{rate}/s", burst)
    children = [queue.child() for _ in range(6)]
    if remote:
        gateway = Gateway(queue)
        for session in [gateway.open() for _ in range(2)]:
            children.append(queue.child())
            children[-1].supervisor, children[-1].id = session.id, session.child
    done = threading.Event()

    def work(child, seed):
        dice = random.Random(seed)
        while not done.is_set():
            with child.connection.transaction() as transaction:
                if seed == 1:
                    child.connection.execute(OLD, child.parameters(10))
                else:
                    gated(child, dice.randint(1, 9))
                if dice.random() < 0.1:
                    raise psycopg.Rollback(transaction)

    workers = [threading.Thread(target=work, args=(child, seed)) for seed, child in enumerate(children)]
    for worker in workers:
        worker.start()
    while queue.count("running") < 300:
        pass
    done.set()
    for worker in workers:
        worker.join()
    found = queue.run(
        "SELECT j.lane, array_agg(extract(epoch FROM r.claimed_at)) FROM jobherd.running r, unnest(r.jobs) AS j GROUP BY 1"
    )
    assert len(found) == 4
    for _, times in found:
        assert len(times) > burst
        for window in (0.01, 0.05, 0.2, 1.0):
            assert most_in_any_window([float(at) for at in times], window) <= burst + rate * window, window


def test_limit_of_running_jobs_limit_of_the_queue_and_strict_order_apply_as_well(queue):
    jobs = put(queue, acme=5, globex=5)
    queue.run("SELECT jobherd.limit_each('crm', 1), jobherd.limit_each_rate('crm', '1/h', burst => 2)")
    one, other = queue.child(), queue.child()
    held = {jobs["acme"][0]: one, jobs["globex"][0]: other}
    rows = {id_: (child, rows) for child in (one, other) for rows in [gated(child)] for id_ in ids(rows)}
    assert set(rows) == set(held)
    assert starts(one)[0] == [], "each partition runs one job"
    for child, claimed in rows.values():
        settle(child, claimed)
    assert sorted(started(one, 2)) == sorted([jobs["acme"][1], jobs["globex"][1]])
    assert started(one, 2) == []
    queue.run("DELETE FROM jobherd.running")
    assert started(one, 2) == [], "each partition has used its burst"
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true), jobherd.limit('crm', '1/h')")
    queue.run("DELETE FROM jobherd.buckets")
    assert len(started(one, 3)) == 1, "the queue has one token"


def test_retry_counts_as_a_start_and_returns_no_token(queue):
    jobs = put(queue, acme=1)
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    child = queue.child()
    rows = [row for row in gated(child) if row["id"]]
    assert child.settle(rows[0]["token"], ids(rows), "retry", error="why", delay=0) == jobs["acme"]
    assert starts(child)[0] == []


@pytest.mark.parametrize("cause", ["the clock was set back", "the limit became higher"])
def test_bucket_is_corrected_after_the_clock_was_set_back_or_the_limit_raised(queue, cause):
    jobs = put(queue, acme=3)
    child = queue.child()
    queue.run("SELECT jobherd.limit_each_rate('crm', %s)", "1/d" if "limit" in cause else "1/min")
    assert starts(child)[0] == jobs["acme"][:1]
    if "limit" in cause:
        assert queue.run("SELECT jobherd.limit_each_rate('crm', '1/min')") == [("1/d",)]
    else:
        back_date(queue, -86400)
        queue.run("UPDATE jobherd.buckets SET opens_at = opens_at + interval '1 day'")
    found, opens_in = starts(child)
    assert (found, 30 < opens_in <= 60) == ([], True)


def test_jobs_without_a_partition_have_no_partition_rate_limit(queue):
    jobs = queue.enqueue_many("a:b", 3, queue="crm")
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    assert started(queue.child(), 3) == jobs
    assert queue.count("buckets") == 0


def test_changing_one_rule_of_a_queue_keeps_its_other_rules(queue):
    rules = "SELECT each_running, each_rate, each_burst, in_order, divided_by IS NOT NULL FROM jobherd.limits"
    queue.run("SELECT jobherd.limit_each_rate('crm', '40/s')")
    assert queue.run(rules) == [(None, "40/s", 2, False, True)]
    queue.run("SELECT jobherd.limit_each('crm', 1, strict => true)")
    assert queue.run("SELECT jobherd.limit_each_rate('crm', '5/2h', burst => 3)") == [("40/s",)]
    assert queue.run(rules) == [(1, "5/2h", 3, True, True)]
    assert queue.run("SELECT jobherd.limit_each('crm', NULL)") == [(1,)]
    assert queue.run(rules) == [(None, "5/2h", 3, False, True)]
    queue.run(
        "SELECT jobherd.pause('crm'), jobherd.fair('crm'), jobherd.limit('crm', '1/s'), jobherd.set_limit('crm', 2)"
    )
    queue.run(
        "SELECT jobherd.fair('crm', off => true), jobherd.limit('crm'), jobherd.set_limit('crm', NULL), jobherd.resume('crm')"
    )
    assert queue.run(rules) == [(None, "5/2h", 3, False, True)]
    assert queue.run("SELECT jobherd.limit_each('crm', NULL)") == [(None,)]
    queue.run("SELECT jobherd.limit_each('crm', 4)")
    assert queue.run("SELECT jobherd.limit_each_rate('crm', NULL)") == [("5/2h",)]
    assert queue.run(rules) == [(4, None, None, False, True)]
    queue.run("SELECT jobherd.limit_each('crm', NULL)")
    assert queue.count("gates") == 0
    queue.run(
        "SELECT jobherd.limit_each_rate('crm', '1/s'), jobherd.limit_each_rate('crm', NULL), jobherd.limit_each_rate('crm', NULL)"
    )
    assert queue.count("gates") == 0


def test_audit_log_records_changes_of_the_partition_rate_limit(queue):
    queue.run(
        "SELECT jobherd.limit_each_rate('crm', '5/s', burst => 2, actor => 'ada'), jobherd.limit_each_rate('crm', NULL, actor => 'ada')"
    )
    assert queue.run("SELECT actor, action, target FROM jobherd.audit ORDER BY id") == [
        ("ada", "limit", {"queue": "crm", "each_rate": "5/s", "burst": 2, "before": None}),
        ("ada", "limit", {"queue": "crm", "each_rate": None, "burst": None, "before": "5/s"}),
    ]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("limit_each_rate('crm', '0/s')", "is not a number of jobs and a time"),
        ("limit_each_rate('crm', '1/d', burst => 1000)", "within a year"),
        ("limit_each_rate('crm', '1/s', burst => 0)", "burst 0 is not a number from 1"),
        ("limit_each_rate('*', '1/s')", "everything together has no partitions"),
        ("limit_each_rate(NULL, '1/s')", "give a queue"),
        ("limit_each('crm', 2147483647)", "is not a number from 1"),
    ],
)
def test_invalid_partition_rule_is_rejected(queue, call, problem):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=problem):
        queue.run(f"SELECT jobherd.{call}")


def test_full_buckets_of_partitions_are_deleted_unless_their_jobs_wait(queue):
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    queue.run(
        "INSERT INTO jobherd.buckets (scope, name, used_until, waiting_in) SELECT 'lane', name, now() + at * interval '1 s', waits"
        " FROM (VALUES ('crm a', -1, NULL), ('crm b', -1, 'crm'), ('crm c', 60, NULL), ('gone d', -1, 'gone')) AS v (name, at, waits)"
    )
    queue.run(queue.text("maintenance/delete_buckets"))
    assert queue.run("SELECT name FROM jobherd.buckets ORDER BY name") == [("crm b",), ("crm c",)]


def test_open_transaction_that_sets_a_partition_rate_limit_blocks_no_claim(queue):
    jobs = put(queue, acme=2)
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/s', burst => 10)")
    child = queue.child()
    with psycopg.connect(queue.dsn) as open_one:
        open_one.execute("SELECT jobherd.limit_each_rate('crm', '1/h')")
        child.connection.execute("SET lock_timeout = '5s'")
        assert starts(child)[0] == jobs["acme"][:1]
        open_one.rollback()
