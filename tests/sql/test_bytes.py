"""Jobs that are large.

What a row may hold, and that no claim is more than a server, an answer and a worker can take.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from psycopg.rows import dict_row

from jobherd import sql
from tests.support.queue import Queue, jobs_of

ONE = 1_000_000
"""Bytes as stored that fill a batch."""
MOST = 64 * 1024 * 1024
"""Bytes that a job may have."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def large(size):
    """A document of so many bytes that nothing can compress."""
    return f'"{random.Random(size).randbytes(size // 2).hex()}"'


@pytest.fixture
def as_it_is(queue):
    """Nothing is compressed, so that a test can reckon."""
    for table in ("ready", "scheduled"):
        queue.run(f"ALTER TABLE jobherd.{table} ALTER payload SET STORAGE EXTERNAL")
    return queue


def by_plain(child, wanted):
    return child.claim_raw(wanted)


def by_gates(child, wanted):
    known = child.parameters(wanted) | {
        "limited": ["other*"],
        "limits": [1],
        "left_queue": None,
        "left_kind": None,
        "narrowed": False,
    }
    return (
        child.connection.cursor(row_factory=dict_row).execute(child.queue.text("claim/claim_gated"), known).fetchall()
    )


def by_seeking(child, wanted):
    known = child.parameters(wanted) | {"past_queue": None, "past_priority": None, "past_id": None, "back": False}
    return jobs_of(child.connection.execute(sql.load(sql.seeking("claim/claim_jobs")), known))


@pytest.mark.parametrize("claim", [by_plain, by_gates, by_seeking])
def test_a_megabyte_fills_a_batch_and_what_is_larger_comes_alone(as_it_is, claim):
    queue = as_it_is
    jobs = [
        queue.enqueue("a:b", large(size))
        for size in (300_000, 300_000, 300_000, 300_000, 300_000, 2_000_000, 10, 2_000_000)
    ]
    child = queue.child()
    found = []
    while rows := claim(child, 100):
        assert child.settle(rows[0]["token"], [row["id"] for row in rows], "ok")
        found.append([row["id"] for row in rows])
    assert found == [jobs[0:4], jobs[4:5], jobs[5:6], jobs[6:7], jobs[7:8]]


def test_bytes_that_are_no_json_weigh_as_much(queue):
    data = random.Random(1).randbytes(600_000)
    jobs = [queue.enqueue("a:b", payload_bytes=data) for _ in range(3)]
    child = queue.child()
    assert [[job.id for job in child.claim(100)] for _ in range(2)] == [jobs[:2], jobs[2:]]


def test_small_jobs_fill_their_batch_as_ever(queue):
    jobs = queue.enqueue_many("a:b", 300)
    assert [job.id for job in queue.child().claim(200)] == jobs[:200]


@pytest.mark.parametrize("payload", [large(400_000), f'"{"x" * 400_000}"'], ids=["random", "compressible"])
def test_a_call_that_waits_for_more_is_filled_by_bytes_too(as_it_is, payload):
    """Also if the row of the claim is stored compressed: the worker gets all bytes."""
    queue = as_it_is
    jobs = [queue.enqueue("a:b", payload) for _ in range(5)]
    child = queue.child()
    [first] = child.claim(1)
    known = {"supervisor": child.supervisor, "child": child.id, "token": first.token, "kind": "a:b", "wanted": 100}
    more = [row[1] for row in child.connection.execute(queue.text("claim/claim_more"), known)]
    assert (first.id, more) == (jobs[0], jobs[1:2])
    assert list(child.connection.execute(queue.text("claim/claim_more"), known)) == [], "it is full"
    assert [job.id for job in child.claim(100)] == jobs[2:]


def test_of_large_jobs_fewer_become_due_at_once(as_it_is):
    queue = as_it_is
    for size in (6 * ONE, 6 * ONE, 10, 12 * ONE):
        queue.enqueue("a:b", large(size), delay=3600.0)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' * (10 - id)")
    assert [queue.promote() for _ in range(4)] == [2, 2, 0, 0]


@pytest.mark.parametrize(("table", "way"), [("ready", "insert"), ("scheduled", "insert"), ("ready", "copy")])
def test_a_row_that_is_too_large_is_refused_in_words_that_name_the_columns(queue, table, way):
    with pytest.raises(
        psycopg.errors.CheckViolation,
        match=f'"{table}" violates .*"ready_payload_extras_and_last_error_are_at_most_64_mb"',
    ):
        if way == "insert":
            queue.run(f"INSERT INTO jobherd.{table} (kind, payload) VALUES ('a:b', to_json(repeat('x', {MOST})))")
        else:
            with queue.connection.cursor().copy(f"COPY jobherd.{table} (id, kind, payload) FROM STDIN") as copy:
                copy.write_row((1, "a:b", f'"{"x" * MOST}"'))
    assert queue.count(table) == 0


def lying(queue, size: int) -> None:
    """A payload of so many bytes in another table, where it takes a hundredth of that."""
    queue.run("CREATE TABLE public.docs (doc json)")
    queue.run(f"INSERT INTO public.docs SELECT to_json(repeat('x', {size}))")


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_what_comes_compressed_is_as_long_as_it_is(queue, table):
    """It was let in for what it took elsewhere, and never let back.

    All that its worker held stayed there.
    """
    lying(queue, MOST)
    with pytest.raises(
        psycopg.errors.CheckViolation,
        match=f'"{table}" violates .*"ready_payload_extras_and_last_error_are_at_most_64_mb"',
    ):
        queue.run(f"INSERT INTO jobherd.{table} (kind, payload) SELECT 'a:b', doc FROM public.docs")
    assert queue.count(table) == 0


def test_a_producer_s_own_functions_do_not_measure_its_jobs(queue):
    """With a search path of its own, a producer could else store a job that no worker can claim."""
    queue.run("CREATE SCHEMA mine")
    queue.run("CREATE FUNCTION mine.pg_column_size(json) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    queue.run("SET search_path = mine, pg_catalog")
    with pytest.raises(psycopg.errors.CheckViolation, match="at_most_64_mb"):
        queue.run(f"INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', to_json(repeat('x', {MOST})))")


def test_what_was_let_in_compressed_is_let_back(queue):
    lying(queue, MOST - 6)
    queue.run("INSERT INTO jobherd.ready (kind, payload) SELECT 'a:b', doc FROM public.docs")
    child = queue.child()
    [row] = child.claim_raw(100)
    assert len(row["payload"]) == MOST - 4
    assert child.release() == [row["id"]]
    assert queue.state(row["id"]) == "ready"


def test_what_is_just_small_enough_is_claimed_and_can_come_back(queue):
    queue.run("ALTER TABLE jobherd.ready ALTER payload SET STORAGE EXTERNAL")
    queue.run("INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', %s)", large(MOST - 20))
    child = queue.child()
    [row] = child.claim_raw(100)
    assert len(row["payload"]) == MOST - 18
    assert child.settle(
        row["token"], [row["id"]], "retry", delay=0.0, error="why it failed, which is longer than what is left"
    )
    assert queue.state(row["id"]) == "retrying"


def test_the_function_refuses_what_is_longer_than_a_payload_may_be_with_the_remedy(queue):
    with pytest.raises(
        psycopg.errors.ProgramLimitExceeded, match="payload is 1000002 bytes, more than 1000000"
    ) as caught:
        queue.run(f"SELECT jobherd.enqueue('a:b', to_jsonb(repeat('x', {ONE})))")
    assert caught.value.diag.message_hint == "Store the data elsewhere and enqueue its key."
