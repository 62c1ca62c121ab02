"""Large jobs: the size limit of a row and of a claim.

A larger claim would be too much for the server, for one answer or for a worker.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from psycopg.rows import dict_row

from jobherd import sql
from tests.support.queue import Queue, jobs_of

ONE = 1_000_000
"""Stored bytes that fill a claim."""
MOST = 64 * 1024 * 1024
"""Maximum bytes of a job."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def large(size):
    """Return a JSON string of `size` random characters, which cannot be compressed."""
    return f'"{random.Random(size).randbytes(size // 2).hex()}"'


@pytest.fixture
def as_it_is(queue):
    """Store payloads uncompressed, so that a test can calculate sizes."""
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
def test_one_megabyte_fills_a_claim_and_a_larger_job_is_claimed_alone(as_it_is, claim):
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


def test_binary_payloads_count_toward_the_bytes_of_a_claim(queue):
    data = random.Random(1).randbytes(600_000)
    jobs = [queue.enqueue("a:b", payload_bytes=data) for _ in range(3)]
    child = queue.child()
    assert [[job.id for job in child.claim(100)] for _ in range(2)] == [jobs[:2], jobs[2:]]


def test_small_jobs_fill_the_claim_size(queue):
    jobs = queue.enqueue_many("a:b", 300)
    assert [job.id for job in queue.child().claim(200)] == jobs[:200]


@pytest.mark.parametrize("payload", [large(400_000), f'"{"x" * 400_000}"'], ids=["random", "compressible"])
def test_claim_more_stops_when_the_claim_is_full_by_bytes(as_it_is, payload):
    """Uncompressed bytes count even if the row of the claim is stored compressed: the worker gets all of them."""
    queue = as_it_is
    jobs = [queue.enqueue("a:b", payload) for _ in range(5)]
    child = queue.child()
    [first] = child.claim(1)
    known = {"supervisor": child.supervisor, "child": child.id, "token": first.token, "kind": "a:b", "wanted": 100}
    more = [row[1] for row in child.connection.execute(queue.text("claim/claim_more"), known)]
    assert (first.id, more) == (jobs[0], jobs[1:2])
    assert list(child.connection.execute(queue.text("claim/claim_more"), known)) == [], "the claim is full"
    assert [job.id for job in child.claim(100)] == jobs[2:]


def test_fewer_large_jobs_are_promoted_at_once(as_it_is):
    queue = as_it_is
    for size in (6 * ONE, 6 * ONE, 10, 12 * ONE):
        queue.enqueue("a:b", large(size), delay=3600.0)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' * (10 - id)")
    assert [queue.promote() for _ in range(4)] == [2, 2, 0, 0]


@pytest.mark.parametrize(("table", "way"), [("ready", "insert"), ("scheduled", "insert"), ("ready", "copy")])
def test_row_above_64_mb_is_rejected_with_an_error_that_names_the_columns(queue, table, way):
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
    """Store a document of `size` characters in another table, where compression reduces it to a hundredth."""
    queue.run("CREATE TABLE public.docs (doc json)")
    queue.run(f"INSERT INTO public.docs SELECT to_json(repeat('x', {size}))")


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_compressed_document_from_another_table_counts_with_its_full_length(queue, table):
    """A job accepted by its compressed length could not be released.

    All jobs of that worker then stayed claimed.
    """
    lying(queue, MOST)
    with pytest.raises(
        psycopg.errors.CheckViolation,
        match=f'"{table}" violates .*"ready_payload_extras_and_last_error_are_at_most_64_mb"',
    ):
        queue.run(f"INSERT INTO jobherd.{table} (kind, payload) SELECT 'a:b', doc FROM public.docs")
    assert queue.count(table) == 0


def test_producer_cannot_replace_the_function_that_measures_its_jobs(queue):
    """Otherwise a producer could set a search path and store a job that no worker can claim."""
    queue.run("CREATE SCHEMA mine")
    queue.run("CREATE FUNCTION mine.pg_column_size(json) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    queue.run("SET search_path = mine, pg_catalog")
    with pytest.raises(psycopg.errors.CheckViolation, match="at_most_64_mb"):
        queue.run(f"INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', to_json(repeat('x', {MOST})))")


def test_job_from_a_compressed_document_can_be_released(queue):
    lying(queue, MOST - 6)
    queue.run("INSERT INTO jobherd.ready (kind, payload) SELECT 'a:b', doc FROM public.docs")
    child = queue.child()
    [row] = child.claim_raw(100)
    assert len(row["payload"]) == MOST - 4
    assert child.release() == [row["id"]]
    assert queue.state(row["id"]) == "ready"


def test_job_just_below_the_size_limit_can_be_claimed_and_retried(queue):
    queue.run("ALTER TABLE jobherd.ready ALTER payload SET STORAGE EXTERNAL")
    queue.run("INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', %s)", large(MOST - 20))
    child = queue.child()
    [row] = child.claim_raw(100)
    assert len(row["payload"]) == MOST - 18
    assert child.settle(
        row["token"], [row["id"]], "retry", delay=0.0, error="why it failed, which is longer than what is left"
    )
    assert queue.state(row["id"]) == "retrying"


def test_enqueue_rejects_a_payload_above_1_mb_and_says_to_store_it_elsewhere(queue):
    with pytest.raises(
        psycopg.errors.ProgramLimitExceeded, match="payload is 1000002 bytes, more than 1000000"
    ) as caught:
        queue.run(f"SELECT jobherd.enqueue('a:b', to_jsonb(repeat('x', {ONE})))")
    assert caught.value.diag.message_hint == "Store the data elsewhere and enqueue its key."
