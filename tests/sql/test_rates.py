"""Rate limits: no window has more starts than rate and burst allow, whatever workers, clocks and versions do."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobherd.handlers._policy.rates import check_rate, check_refill
from tests.sql.test_gates import behind, gated, ids, settle
from tests.support.queue import Queue
from tests.support.remote import Gateway

OLD = """
SELECT c.token, j.id, c.queue
  FROM jobherd.claim_gated(%(supervisor)s::bigint, %(child)s::bigint, NULL, NULL, %(wanted)s::integer, NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS c
       LEFT JOIN LATERAL unnest(c.jobs) AS j ON true"""
"""The claim statement of workers of an earlier version."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def starts(child, wanted=10, **parameters):
    """Claim. Return the ids, and the seconds until the next token if the answer contains them."""
    rows = gated(child, wanted, **parameters)
    opens_in = None
    if rows and rows[-1]["id"] is None and rows[-1]["queue"] is None:
        opens_in = rows.pop()["waited"]
        assert opens_in is not None, "no limit applies"
    return ids(rows), opens_in


def back_date(queue, seconds):
    """Back-date the buckets by that many seconds."""
    queue.run("UPDATE jobherd.buckets SET used_until = used_until - make_interval(secs => %s)", seconds)


def most_in_any_window(times, window):
    """Return the most starts in any window of that length, given the times of the claims."""
    times = sorted(times)
    most = first = 0
    for last, time in enumerate(times):
        while times[first] <= time - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_starts_are_limited_to_the_burst_and_then_to_one_per_token(queue):
    jobs = queue.enqueue_many("a:b", 6, queue="mail")
    assert queue.run("SELECT jobherd.limit('mail', '1/min', burst => 2)") == [(None,)]
    one, other = queue.child(), queue.child()
    assert one.claim_raw(10)[0]["id"] is None, "claim_jobs leaves limited jobs to claim_gated"
    assert starts(one) == (jobs[:1], None), "a claim gets the tokens of 50 ms, and at least one"
    found, opens_in = starts(other)
    assert found == jobs[1:2]
    assert 30 < opens_in <= 60, "the claim that takes the last token returns when the next one comes"
    found, again = starts(one)
    assert (found, again <= opens_in) == ([], True)
    back_date(queue, 60)
    assert starts(one)[0] == jobs[2:3]
    back_date(queue, 3600)
    assert [starts(one)[0] for _ in range(3)] == [jobs[3:4], jobs[4:5], []], "at most the burst accumulates"
    assert queue.run("SELECT name, rate, burst, tokens, rated_by FROM jobherd.limits") == [
        ("mail", "1/min", 2, 0, queue.run("SELECT session_user")[0][0])
    ]


def test_limits_of_kind_and_queue_both_apply_and_do_not_block_other_kinds(queue):
    pushes = queue.enqueue_many("crm:push", 5)
    others = queue.enqueue_many("a:b", 3)
    queue.run("SELECT jobherd.limit(kind => 'crm:push', rate => '1/h', burst => 3)")
    child = queue.child()
    assert [starts(child)[0] for _ in range(3)] == [pushes[:1], pushes[1:2], pushes[2:3]]
    found, opens_in = starts(child)
    assert (found, opens_in) == (others, None)
    assert 3590 < starts(child)[1] <= 3600
    queue.run("SELECT jobherd.limit('default', '1/h')")
    back_date(queue, 3600)
    assert starts(child)[0] == pushes[3:4]
    back_date_of_kind = "UPDATE jobherd.buckets SET used_until = now() - interval '1 day' WHERE scope = 'kind'"
    queue.run(back_date_of_kind)
    assert starts(child)[0] == [], "the queue has no token"


def test_one_claim_starts_as_many_jobs_as_tokens_come_in_50_ms(queue):
    jobs = queue.enqueue_many("a:b", 300, queue="fast")
    queue.run("SELECT jobherd.limit('fast', '2000/s', burst => 150)")
    child = queue.child()
    assert starts(child, 500)[0] == jobs[:100]
    assert len(starts(child, 500)[0]) >= 50
    queue.enqueue_many("b:c", 300)
    queue.run("SELECT jobherd.limit(kind => 'b:c', rate => '2000/s', burst => 150)")
    assert len(starts(child, 500, served=["default"])[0]) == 100
    queue.run("SELECT jobherd.set_limit(kind => 'b:c', max_running => 200)")
    assert len(starts(child, 500, served=["default"])[0]) == 1, "a job under a concurrency limit is claimed alone"


def test_parked_jobs_start_in_one_claim(queue):
    jobs = queue.enqueue_many("b:c", 30)
    queue.run("SELECT jobherd.limit(kind => 'b:c', rate => '100/s', burst => 1)")
    child = queue.child()
    assert starts(child)[0] == jobs[:1]
    queue.run("UPDATE jobherd.gates SET rate = 1, burst = 20, per = 3600")
    queue.run(
        "INSERT INTO jobherd.buckets VALUES ('kind', 'b:c', now() + interval '20 h') ON CONFLICT (scope, name) DO UPDATE SET used_until = excluded.used_until"
    )
    assert starts(child)[0] == []
    assert queue.count("parked") == 29
    queue.run("UPDATE jobherd.gates SET rate = 100, per = 1")
    queue.run("DELETE FROM jobherd.buckets")
    assert starts(child)[0] == jobs[1:6]


def test_rate_and_concurrency_limit_both_apply(queue):
    jobs = queue.enqueue_many("a:b", 5, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 2), jobherd.limit('media', '1/h', burst => 3)")
    one, two, three = (queue.child() for _ in range(3))
    mine, theirs = gated(one), gated(two)
    assert (ids(mine), ids(theirs), starts(three)[0]) == (jobs[:1], jobs[1:2], [])
    settle(one, mine)
    assert starts(one)[0] == jobs[2:3]
    settle(two, theirs)
    assert starts(two)[0] == [], "the concurrency limit allows a job, but there is no token"


@pytest.mark.parametrize("remote", [False, True])
def test_no_window_has_more_starts_than_rate_and_burst_allow(queue, remote):
    """Many workers claim, one of them of an earlier version, and one claim in ten is rolled back.

    Only committed rows are counted.
    """
    rate, burst = 500, 7
    queue.enqueue_many("a:b", 3000, queue="mail")
    queue.run("SELECT jobherd.limit('mail', %s, burst => %s)", f"{rate}/s", burst)
    gateway = Gateway(queue) if remote else None
    sessions = [gateway.open() for _ in range(3)] if gateway else []
    children = [queue.child() for _ in range(6)]
    children += [_child_of(queue, session) for session in sessions]
    done = threading.Event()

    def work(child, seed):
        dice = random.Random(seed)
        connection = child.connection
        while not done.is_set():
            with connection.transaction() as transaction:
                if seed == 1:
                    connection.execute(OLD, {"supervisor": child.supervisor, "child": child.id, "wanted": 4})
                else:
                    gated(child, dice.randint(1, 9))
                if dice.random() < 0.1:
                    raise psycopg.Rollback(transaction)

    workers = [threading.Thread(target=work, args=(child, seed)) for seed, child in enumerate(children)]
    for worker in workers:
        worker.start()
    while queue.count("running") < 120:
        pass
    done.set()
    for worker in workers:
        worker.join()
    times = [
        float(at)
        for at, number in queue.run("SELECT extract(epoch FROM claimed_at), cardinality(jobs) FROM jobherd.running")
        for _ in range(number)
    ]
    for window in (0.01, 0.05, 0.2, 1.0):
        assert most_in_any_window(times, window) <= burst + rate * window, window


def _child_of(queue, session):
    child = queue.child()
    child.supervisor, child.id = session.id, session.child
    return child


@pytest.mark.parametrize("how", ["cancel", "release", "reclaim"])
def test_canceled_released_or_reclaimed_job_returns_no_token(queue, how):
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.limit('media', '1/h')")
    supervisor = queue.supervisor()
    dying = supervisor.child()
    rows = gated(dying)
    assert ids(rows)[:1] == jobs[:1]
    if how == "cancel":
        queue.cancel(jobs[0])
        dying.settle(rows[0]["token"], jobs[:1], "cancelled")
    elif how == "release":
        assert dying.release() == jobs[:1]
    else:
        assert queue.supervisor().reclaim(dead=[supervisor.id]) == (1, 1)
    assert starts(queue.child())[0] == [], "starts may stay below the limit, never above it"


def test_rolled_back_claim_takes_no_token(queue):
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.limit('media', '1/h')")
    one, other = queue.child(), queue.child()
    with one.connection.transaction() as transaction:
        assert starts(one)[0] == jobs[:1]
        raise psycopg.Rollback(transaction)
    assert starts(other)[0] == jobs[:1]


@pytest.mark.parametrize("cause", ["the clock was set back", "the limit became higher"])
def test_bucket_that_is_used_too_far_ahead_is_corrected(queue, cause):
    jobs = queue.enqueue_many("a:b", 3, queue="mail")
    child = queue.child()
    if cause == "the limit became higher":
        queue.run("SELECT jobherd.limit('mail', '1/d')")
        assert starts(child)[0] == jobs[:1]
        queue.run("SELECT jobherd.limit('mail', '1/min')")
    else:
        queue.run("SELECT jobherd.limit('mail', '1/min')")
        assert starts(child)[0] == jobs[:1]
        back_date(queue, -86400)
    found, opens_in = starts(child)
    assert (found, 30 < opens_in <= 60) == ([], True)
    back_date(queue, 60)
    assert starts(child)[0] == jobs[1:2]


def test_worker_of_an_earlier_version_obeys_a_rate_limit(queue):
    jobs = queue.enqueue_many("a:b", 2, queue="mail")
    queue.run("SELECT jobherd.limit('mail', '1/h')")
    child = queue.child()
    old = {"supervisor": child.supervisor, "child": child.id, "wanted": 4}
    assert [row[1:] for row in child.connection.execute(OLD, old).fetchall()] == [(jobs[0], "mail")]
    assert child.connection.execute(OLD, old).fetchall() == [], (
        "a row without a queue would send the worker to claim_jobs"
    )


def test_claim_returns_no_token_time_if_no_served_job_waits_for_it(queue):
    queue.run("SELECT jobherd.limit('mail', '1/h'), jobherd.limit(kind => 'c:d', rate => '1/h')")
    child = queue.child()
    queue.enqueue_many("a:b", 2, queue="mail")
    assert starts(child)[1] is not None
    assert starts(child, served=["other"]) == ([], None)
    queue.run("SELECT jobherd.pause('mail')")
    assert starts(child) == ([], None)


def test_open_transaction_that_sets_a_limit_blocks_no_claim(queue):
    queue.run("SELECT jobherd.limit('mail', '1/s', burst => 10)")
    jobs = queue.enqueue_many("a:b", 2, queue="mail")
    child = queue.child()
    with psycopg.connect(queue.dsn) as open_one:
        open_one.execute("SELECT jobherd.limit('mail', '1/h')")
        child.connection.execute("SET lock_timeout = '5s'")
        assert starts(child)[0] == jobs[:1]
        open_one.rollback()


def test_pause_resume_and_both_limits_are_independent(queue):
    gates = "SELECT paused_at IS NOT NULL, max_running, rate FROM jobherd.gates"
    queue.run("SELECT jobherd.limit('m', '5/s'), jobherd.set_limit('m', 3), jobherd.pause('m')")
    assert queue.run("SELECT jobherd.resume('m')") == [(True,)]
    assert queue.run(gates) == [(False, 3, 5)]
    assert queue.run("SELECT jobherd.set_limit('m', NULL)") == [(3,)]
    assert queue.run(gates) == [(False, None, 5)]
    assert queue.run("SELECT jobherd.set_limit('m', NULL)") == [(None,)]
    assert queue.run(gates) == [(False, None, 5)]
    assert queue.run("SELECT jobherd.pause('m'), jobherd.resume('m'), jobherd.resume('m')") == [(True, True, False)]
    assert queue.run(gates) == [(False, None, 5)]
    queue.run("SELECT jobherd.pause('m')")
    assert queue.run("SELECT jobherd.limit('m')") == [("5/s",)]
    assert queue.run(gates) == [(True, None, None)]
    queue.run("SELECT jobherd.resume('m'), jobherd.limit('m', '5/2h'), jobherd.limit('m')")
    assert queue.run(gates) == []


def declare_rates(queue, **rates):
    given = {kind: rate and check_rate(rate, field="rate") for kind, rate in rates.items()}
    queue.connection.execute(
        queue.text("lease/declare_rates"),
        {
            "names": list(given),
            "rates": [rate and rate.jobs for rate in given.values()],
            "pers": [rate and rate.seconds for rate in given.values()],
            "bursts": [None] * len(given),
        },
    )
    return queue.run(
        "SELECT name, jobherd.show_rate(g), burst, rated_by = '@handler' FROM jobherd.gates g ORDER BY name"
    )


def test_rate_set_by_a_user_overrides_the_handlers_rate(queue):
    assert declare_rates(queue, a="100/min", b="400/s", c=None) == [("a", "100/min", 1, True), ("b", "400/s", 20, True)]
    queue.run("SELECT jobherd.limit(kind => 'a', rate => '9/h')")
    assert declare_rates(queue, a="100/min", b=None) == [("a", "9/h", 1, False)]
    queue.run("SELECT jobherd.set_limit(kind => 'b', max_running => 2)")
    assert declare_rates(queue, b="1/s")[1] == ("b", "1/s", 1, True)
    assert declare_rates(queue, b=None)[1] == ("b", None, None, None)


def test_concurrency_limit_withdrawn_by_an_earlier_version_leaves_the_rate(queue):
    queue.connection.execute(queue.text("lease/declare_limits"), {"names": ["a"], "max_running": [2]})
    declare_rates(queue, a="100/min")
    queue.connection.execute(queue.text("lease/declare_limits"), {"names": ["a"], "max_running": [None]})
    assert queue.run("SELECT max_running, rate FROM jobherd.gates") == [(None, 100)]


def test_concurrent_pause_does_not_keep_a_withdrawn_rate(queue):
    declare_rates(queue, a="100/min")
    declared = {"names": ["a"], "rates": [None], "pers": [None], "bursts": [None]}
    behind(queue, "SELECT jobherd.pause(kind => 'a')", [queue.text("lease/declare_rates"), declared])
    assert queue.run("SELECT paused_at IS NOT NULL, rate FROM jobherd.gates") == [(True, None)]


def test_full_buckets_of_removed_limits_are_deleted(queue):
    queue.run("SELECT jobherd.limit('mail', '1/h')")
    queue.run(
        "INSERT INTO jobherd.buckets VALUES ('queue', 'mail', now() - interval '1 h'), ('queue', 'gone', now() - interval '1 s'), ('queue', 'used', now() + interval '1 h')"
    )
    queue.run(queue.text("maintenance/delete_buckets"))
    assert queue.run("SELECT name FROM jobherd.buckets ORDER BY name") == [("mail",), ("used",)]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("limit('a', '0/s')", "is not a number of jobs and a time"),
        ("limit('a', '10')", "is not a number of jobs and a time"),
        ("limit('a', '2000000/s')", "is not a number of jobs and a time"),
        ("limit('a', '1/400d')", "is not a number of jobs and a time"),
        ("limit('a', '1/s', burst => 0)", "burst 0 is not a number from 1"),
        ("limit('a', '1/d', burst => 1000)", "within a year"),
        ("limit('*', '1/s')", "everything together has no limit"),
        ("limit(rate => '1/s')", "give a queue or a kind"),
    ],
)
def test_invalid_rate_limit_is_rejected_with_a_reason(queue, call, problem):
    with pytest.raises(psycopg.Error, match=problem):
        queue.run(f"SELECT jobherd.{call}")


def test_audit_log_records_each_change_of_a_rate_limit(queue):
    queue.run("SELECT jobherd.limit('mail', '5/s', actor => 'ada')")
    queue.run("SELECT jobherd.limit('mail', actor => 'ada')")
    queue.run("SELECT jobherd.limit('mail', actor => 'ada')")
    found = queue.run("SELECT actor, action, target FROM jobherd.audit ORDER BY id")
    assert found == [
        ("ada", "limit", {"queue": "mail", "rate": "5/s", "burst": None, "before": None}),
        ("ada", "limit", {"queue": "mail", "rate": None, "burst": None, "before": "5/s"}),
    ]


texts = st.from_regex(r"[0-9]{1,8}/([0-9]{1,6})?(s|m|min|h|d)", fullmatch=True) | st.text(max_size=8)


def test_python_and_postgresql_parse_the_same_rates(queue):
    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(texts.filter(lambda text: "\0" not in text and text.isprintable()))
    def read(text):
        try:
            here = tuple(check_rate(text, field="rate"))
        except ValueError:
            here = None
        try:
            there = queue.run("SELECT count, seconds FROM jobherd.parse_rate(%s)", text)[0]
        except psycopg.errors.InvalidParameterValue:
            there = None
        assert here == there

    read()


@pytest.mark.parametrize(("burst", "problem"), [(3, "requires rate"), (1000, "more than a year")])
def test_impossible_burst_is_rejected(burst, problem):
    rate = check_rate("1/d", field="rate") if burst == 1000 else None
    with pytest.raises(ValueError, match=problem):
        check_refill(rate, burst)


def test_helper_counts_the_most_starts_in_a_window():
    assert most_in_any_window([0.0, 0.5, 0.9, 1.0, 1.4], 1.0) == 4
