"""A claim from a position takes the jobs of a full scan except those before it, and skips the dead index entries there."""

from __future__ import annotations

import random

import psycopg
import pytest

from jobherd.workers.claim.scan_start import SOUGHT
from tests.support.queue import Queue, jobs_of

PLACE = ("past_queue", "past_priority", "past_id")
NOWHERE = dict.fromkeys(PLACE) | {"back": False}


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.mark.parametrize("seed", range(6))
def test_claim_from_a_position_takes_the_jobs_of_a_full_scan_after_that_position(queue, seed):
    dice = random.Random(seed)
    ids = []
    for number in range(60):
        options = {"queue": dice.choice(["a", "b", "c", "d"]), "priority": dice.choice([-1, 0, 0, 3])}
        ids.append(queue.enqueue("a:b", f'{{"n": {number}}}', **options))
    if dice.random() < 0.5:
        queue.run("SELECT jobherd.pause(%s)", dice.choice(["a", "b"]))
    child = queue.child()
    with psycopg.connect(queue.dsn) as locker, psycopg.connect(queue.dsn) as connection:
        locker.execute("SELECT FROM jobherd.ready WHERE random() < 0.2 FOR UPDATE")

        def claimed(name, parameters, without=None):
            if without is not None:
                connection.execute("DELETE FROM jobherd.ready WHERE queue = %s AND priority = %s AND id <= %s", without)
            rows = jobs_of(connection.execute(queue.text(name), parameters))
            moved = connection.execute("SELECT child, queue, jobs::text FROM jobherd.running").fetchall()
            connection.rollback()
            for row in rows:
                row.pop("token"), row.pop("waited")
            return rows, moved

        for _ in range(25):
            parameters = child.parameters(dice.choice([1, 5, 30])) | {
                "served": dice.choice([None, ["b", "a"], ["c", "no-such", "d"]]),
                "avoided": dice.choice([None, ["a"]]),
            }
            assert claimed(SOUGHT, parameters | NOWHERE) == claimed("claim/claim_jobs", parameters)
        locker.rollback()
        for _ in range(25):
            place = (dice.choice(["a", "b", "c", "d", "0", "zz"]), dice.choice([-1, 0, 3]), dice.choice(ids))
            parameters = child.parameters(dice.choice([1, 5, 30])) | {"served": dice.choice([None, ["b", "a"]])}
            sought = parameters | dict(zip(PLACE, place, strict=True)) | {"back": False}
            # From a more urgent job, the claim may continue with jobs before the position. Workers
            # choose no such position, but the result is allowed.
            assert claimed(SOUGHT, sought) in (
                claimed("claim/claim_jobs", parameters, without=place),
                claimed("claim/claim_jobs", parameters),
            )


def buffers(queue, name, parameters):
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        for _ in range(2):
            row = connection.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queue.text(name), parameters
            ).fetchone()
            connection.rollback()
        plan = row[0][0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_claim_from_a_position_does_not_scan_dead_rows_of_an_old_snapshot(queue):
    child = queue.child()
    with psycopg.connect(queue.dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM jobherd.ready")
        first = queue.enqueue_many("a:b", 20)
        fresh = buffers(queue, SOUGHT, child.parameters(10) | NOWHERE)
        queue.run("DELETE FROM jobherd.ready")
        queue.enqueue_many("a:b", 30_000)
        queue.run("DELETE FROM jobherd.ready")
        last = queue.enqueue_many("a:b", 20)
        place = {"past_queue": "default", "past_priority": 0, "past_id": last[0] - 1}
        behind = buffers(queue, SOUGHT, child.parameters(10) | place | {"back": False})
        walked = buffers(queue, "claim/claim_jobs", child.parameters(10))
        assert first
        old.execute("SELECT 1")
    print(f"fresh {fresh}, behind a place {behind}, walked {walked} buffers")
    assert walked > fresh + 100  # a page has some hundred dead rows
    assert behind <= fresh + 20


def test_claim_from_a_position_goes_directly_to_the_named_queues(queue):
    queue.run(
        "INSERT INTO jobherd.ready (kind, queue) SELECT 'a:b', 'q' || lpad(n::text, 4, '0') FROM generate_series(1, 500) AS n"
    )
    child = queue.child()
    parameters = child.parameters(1, ["q0250", "q0400"])
    walked, sought = buffers(queue, "claim/claim_jobs", parameters), buffers(queue, SOUGHT, parameters | NOWHERE)
    print(f"walked {walked}, sought {sought} buffers")
    assert walked > 1000
    assert sought < 100


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_claim_that_looks_back_finds_a_job_rescheduled_to_before_its_enqueue(queue, table):
    child = queue.child()
    moved = queue.enqueue("a:b", delay=3600.0 if table == "scheduled" else None)
    queue.enqueue_many("a:b", 20)
    assert queue.run("SELECT jobherd.reschedule(%s, now() - interval '1 day')", moved) == [("ready",)]
    parameters = child.parameters(1) | dict(zip(PLACE, ("default", 0, moved + 5), strict=True)) | {"back": True}
    assert [job["id"] for job in jobs_of(child.connection.execute(queue.text(SOUGHT), parameters))] == [moved]


def test_claim_that_looks_back_finds_returned_jobs_without_a_full_scan(queue):
    child = queue.child()
    with psycopg.connect(queue.dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM jobherd.ready")
        later, retried, given_back = (
            queue.enqueue("a:b", delay=3600.0),
            queue.enqueue("a:b"),
            queue.enqueue("a:b", priority=1),
        )
        [job] = child.claim(1)
        assert child.settle(job.token, [retried], "retry", delay=3600.0) == [retried]
        queue.enqueue_many("a:b", 30_000)
        queue.run("DELETE FROM jobherd.ready WHERE id <> %s", given_back)
        last = queue.enqueue_many("a:b", 20)
        before = {"past_queue": "default", "past_priority": 0, "past_id": last[0] - 1}
        place, back = before | {"back": False}, before | {"back": True}
        none = buffers(queue, SOUGHT, child.parameters(1) | place)
        looked = buffers(queue, SOUGHT, child.parameters(1) | back)
        for number in (later, retried):
            queue.run("SELECT jobherd.retry(%s)", number)
        queue.run("UPDATE jobherd.ready SET priority = 0 WHERE id = %s", given_back)
        found = buffers(queue, SOUGHT, child.parameters(1) | back)
        old.execute("SELECT 1")

    def sought(parameters):
        return [
            job["id"] for job in jobs_of(child.connection.execute(queue.text(SOUGHT), child.parameters(1) | parameters))
        ]

    assert sought(place) == [last[0]]
    assert [sought(back) for _ in range(3)] == [[later], [retried], [last[1]]], "only a full scan finds a released job"
    assert [job.id for job in child.claim(1)] == [given_back]
    print(f"not looking back {none}, looking {looked}, found {found} buffers")
    assert max(looked, found) <= none + 20
