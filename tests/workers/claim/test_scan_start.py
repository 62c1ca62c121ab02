"""When a worker skips the full scan of a claim, and how long it may then miss a job."""

from __future__ import annotations

import itertools
import random

import psycopg
import pytest

from jobherd.workers.claim import scan_start
from jobherd.workers.claim.scan_start import (
    BACK,
    DEAD,
    DOUBT,
    LAG,
    LONG,
    LONGEST,
    SOONEST,
    SPARSE,
    TURN,
    Place,
    ScanStart,
)
from jobherd.workers.job.row import JobRow
from tests.support.seats import Bench


def rows(*ids, queue="default", priority=0):
    return [
        JobRow(1, number, "a:b", queue, "{}", 1, None, 0, priority, None, 0.0, 0.0, None, 0.0, True) for number in ids
    ]


def claim(way, found, now, *, took=0.001, sought=False, together=False):
    way.note_claim(found, sought=sought, took=took, together=together, now=now)


def long_way(dead=DEAD, took=0.02):
    way = ScanStart()
    claim(way, rows(100), 10.0, took=took)
    way.note_dead(dead, named=False, now=10.0)
    return way


def test_worker_repeats_the_full_scan_after_a_fast_one():
    way = ScanStart()
    claim(way, rows(100), 10.0, took=LONG)
    assert (way.until, way.doubt) == (0.0, 0.0)


def test_scan_that_waited_for_the_fsync_of_a_settlement_does_not_count_as_slow():
    way = ScanStart()
    claim(way, rows(100), 10.0, took=LONG * 2, together=True)
    assert way.doubt == 0.0
    claim(way, [], 10.0, took=LONG * 2)
    assert way.doubt > 0.0


def test_slow_scan_over_live_rows_skips_nothing_and_is_not_examined_again_at_once():
    way = long_way(dead=DEAD - 1)
    assert (way.until, way.place) == (0.0, None)
    claim(way, rows(100), 10.0 + DOUBT / 2, took=0.02)
    assert way.doubt == 0.0
    claim(way, rows(100), 10.0 + DOUBT, took=0.02)
    assert way.doubt > 0.0


def test_position_is_at_least_lag_old_and_before_the_first_job_seen_then():
    way = long_way()
    claim(way, rows(100), 11.0, sought=True)
    assert way.place is None
    claim(way, rows(200), 11.0 + LAG / 2, sought=True)
    assert way.place is None
    claim(way, rows(300), 11.0 + LAG, sought=True)
    assert way.place == Place("default", 0, 99)
    claim(way, rows(400), 11.0 + 2 * LAG, sought=True)
    assert way.place == Place("default", 0, 299)
    claim(way, [], 12.0 + 3 * LAG, sought=True)
    assert way.place == Place("default", 0, 299)


def test_only_a_claim_that_skips_rows_shortens_the_sleep():
    way = long_way()
    assert way.seeks("claim/claim_jobs", 10.1)
    assert not way.left_out  # There is no position yet.
    for now in (11.0, 11.0 + LAG):
        claim(way, rows(100), now, sought=True)
    assert way.seeks("claim/claim_job", 12.0)
    assert way.left_out
    assert way.back
    assert way.rest(60.0, 12.0) == way.until - 12.0
    assert way.rest(60.0, way.until + 1.0) == 0.0  # It ended during the claim: a full scan is due.
    for statement, now in (
        ("claim/claim_gated", 12.0),
        ("claim/claim_jobs+of_kinds", 12.0),
        ("claim/claim_jobs", way.until),
    ):
        assert not way.seeks(statement, now)
        assert not way.left_out, "otherwise a worker that makes no full scans would never sleep again"


def test_another_queue_or_priority_has_its_own_position():
    way = long_way()
    for now in (11.0, 11.0 + LAG):
        claim(way, rows(100), now, sought=True)
    assert way.place
    claim(way, rows(300, priority=1), 12.0, sought=True)
    assert way.place is None


def test_full_scan_is_repeated_at_intervals_and_a_fast_one_resets_the_position():
    way = long_way(took=0.02)
    assert way.until == 10.0 + SPARSE * 0.02
    assert long_way(took=10.0).until == 10.0 + LONGEST
    claim(way, rows(500), 20.0, took=0.03)
    assert way.doubt == 0.03
    way.note_dead(DEAD, named=False, now=20.0)
    assert way.until == 20.0 + SPARSE * 0.03
    claim(way, rows(900), 30.0, took=0.001)
    assert (way.until, way.place) == (0.0, None)


def placed(before=100):
    """Return a scan start whose position is right before that id."""
    way = long_way(took=0.07)
    for now in (11.0, 11.0 + LAG):
        claim(way, rows(before), now, sought=True)
    assert way.place == Place("default", 0, before - 1)
    return way


def test_check_for_returned_jobs_is_repeated_while_it_finds_some_and_rare_afterwards():
    way = placed()
    for now in (12.0, 12.001):
        assert way.seeks("claim/claim_jobs", now)
        assert way.back
        claim(way, rows(40), now, sought=True)
    assert way.place == Place("default", 0, 99), "a job found before the position does not move it"
    assert way.seeks("claim/claim_jobs", 12.002)
    claim(way, rows(600), 12.003, sought=True, took=0.004)
    assert way.seeks("claim/claim_jobs", 12.003 + BACK * 0.004 - 0.001)
    assert not way.back
    # A worker that slept longer would miss returned jobs.
    assert way.rest(60.0, 12.003) == pytest.approx(BACK * 0.004)
    assert way.seeks("claim/claim_jobs", 12.004 + BACK * 0.004)
    assert way.back
    claim(way, [], 13.0, sought=True, took=0.0)
    assert (
        way.rest(60.0, 13.0) == way.until - 13.0
    )  # No job has returned, and a process that returns one wakes a worker.
    assert way.seeks("claim/claim_jobs", 13.0 + SOONEST / 2)
    assert not way.back


def test_full_scan_moves_the_position_back_only_if_all_its_jobs_are_before_it():
    way = placed()
    claim(way, rows(40, 500), 20.0, took=0.03)
    assert way.place == Place("default", 0, 99)
    claim(way, rows(40, 41), 30.0, took=0.03)
    assert way.place == Place("default", 0, 39)


def test_claims_from_named_queues_skip_the_full_scan_without_a_position():
    way = ScanStart()
    claim(way, rows(100), 10.0, took=0.02)
    way.note_dead(0, named=True, now=10.0)
    assert way.until > 10.0
    for now in (11.0, 12.0):
        claim(way, rows(100), now, sought=True)
    assert way.place is None


def test_queue_that_is_served_again_has_its_earlier_position():
    way = placed()
    claim(way, rows(5000, queue="mail"), 12.0, sought=True)
    assert way.place is None
    claim(way, rows(5100, queue="mail"), 12.0 + LAG, sought=True)
    assert way.place == Place("mail", 0, 4999)
    claim(way, rows(200), 13.0, sought=True)
    assert way.place == Place("default", 0, 99)
    claim(way, rows(5200, queue="mail"), 13.0 + LAG, sought=True)
    assert way.place == Place("mail", 0, 5099)


def test_turn_is_longer_than_the_slow_scan_and_exists_only_with_dead_rows():
    way = long_way(took=0.05)
    assert way.turn_until == 10.0 + TURN * 0.05
    named = ScanStart()
    claim(named, rows(100), 10.0, took=0.05)
    named.note_dead(0, named=True, now=10.0)
    assert (named.turn_until, named.until > 10.0) == (0.0, True)
    claim(way, rows(500), 20.0)
    assert way.turn_until == 0.0


@pytest.mark.parametrize("queues", [(), ("mail", "news", "default")])
def test_worker_that_skips_rows_stays_with_a_queue_for_a_turn_and_serves_all_queues(bench: Bench, monkeypatch, queues):
    """Every scan counts as slow, and every turn is endless.

    A turn ends when its queue is empty, and the worker finds jobs of other queues without a wake.
    """
    monkeypatch.setattr(scan_start, "LONG", 0.0)
    monkeypatch.setattr("jobherd.workers.claim.claim_query.LONG", 0.0)
    monkeypatch.setattr(scan_start, "LONG_TOGETHER", 0.0)
    monkeypatch.setattr(scan_start, "ROW", 0.0)
    monkeypatch.setattr(scan_start, "DEAD", 0)
    monkeypatch.setattr(scan_start, "LAG", 0.0)
    monkeypatch.setattr(scan_start, "LONGEST", 600.0)
    monkeypatch.setattr(scan_start, "SPARSE", 10**6)
    monkeypatch.setattr(scan_start, "TURN", 10**6)
    jobs = [
        bench.enqueue("act:nothing", options={"queue": queue})
        for _ in range(10)
        for queue in ("mail", "news", "default")
    ]
    bench.start(poll=600.0, most_claimed=1, served=queues)
    for job in jobs:
        assert bench.wait(job, "completed")
    with psycopg.connect(bench.dsn) as connection:
        rows = connection.execute(
            "SELECT queue FROM jobherd.jobs WHERE state = 'completed' ORDER BY started_at"
        ).fetchall()
    order = [queue for (queue,) in rows]
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes < 10, "the worker stays with a queue while it has jobs"


@pytest.mark.parametrize("called", [False, True], ids=["the next whole walk", "the worker that is woken for it"])
def test_job_that_returns_before_the_position_is_found(bench: Bench, monkeypatch, called):
    """Every scan counts as slow because of dead rows, and a position is used at once.

    The worker skips rows. Without a wake, it must make a full scan when one is due.
    """
    monkeypatch.setattr(scan_start, "LONG", 0.0)
    monkeypatch.setattr("jobherd.workers.claim.claim_query.LONG", 0.0)
    monkeypatch.setattr(scan_start, "LONG_TOGETHER", 0.0)
    monkeypatch.setattr(scan_start, "ROW", 0.0)
    monkeypatch.setattr(scan_start, "DEAD", 0)
    monkeypatch.setattr(scan_start, "LAG", 0.0)
    monkeypatch.setattr(scan_start, "LONGEST", 600.0 if called else 0.5)
    monkeypatch.setattr(scan_start, "SPARSE", 10**6)
    early = bench.enqueue("act:nothing", options={"delay": 3600})
    child = bench.start(poll=600.0)
    for _ in range(4):
        job = bench.enqueue("act:nothing")
        child.nudge()
        bench.wait(job, "completed")
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT jobherd.retry(%s)", [early]).fetchone() == ("ready",)
    if called:
        child.nudge()
    assert bench.wait(early, "completed")


@pytest.mark.parametrize("seed", range(20))
def test_no_job_waits_longer_than_until_the_next_full_scan(seed):
    """Simulates workers and producers in a random history.

    Some transactions commit late, some jobs return under old ids, and the queue is long or empty.
    """
    dice = random.Random(seed)
    ways = [ScanStart() for _ in range(dice.choice([1, 3]))]
    waiting: dict[int, float] = {}
    lagging: list[tuple[float, int]] = []
    now, last, longest = 100.0, 0, 0.0
    for _ in range(4000):
        now += dice.expovariate(20)
        last += 1
        if dice.random() < 0.05:
            lagging.append((now + dice.choice([0.1, 1.0, 10.0]), last))
        else:
            waiting[last] = now
        if dice.random() < 0.02:
            waiting.setdefault(dice.randrange(1, last + 1), now)
        for due, job in [one for one in lagging if one[0] <= now]:
            lagging.remove((due, job))
            waiting[job] = now
        way = dice.choice(ways)
        sought = way.until > now
        ahead = sorted(job for job in waiting if not (sought and way.place and job <= way.place.id))[:3]
        claim(way, rows(ahead[0]) if ahead else [], now, took=0.02, sought=sought)
        for job in ahead:
            longest = max(longest, now - waiting.pop(job))
        if way.doubt:
            way.note_dead(DEAD, named=False, now=now)
    assert LAG < longest <= SPARSE * 0.02 + 3.0, (
        "some jobs wait, but at most until the next full scan and the next turn of a worker"
    )
