"""Partitions of jobs: named on enqueue or taken from the payload, kept in every state, and forced for tenants."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import Client
from tests.support.queue import Queue

FIND = """
SELECT (extras).partition, lane = jobherd.lane_of((extras).partition)
  FROM (SELECT id, extras, lane FROM jobherd.ready UNION ALL SELECT id, extras, lane FROM jobherd.scheduled
        UNION ALL SELECT id, extras, lane FROM jobherd.parked
        UNION ALL SELECT j.id, j.extras, j.lane FROM jobherd.running, unnest(jobs) AS j) AS live
 WHERE id = %s"""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def client(queue):
    with Client(queue.dsn) as client:
        yield client


def of(queue, job):
    """Return the partition of a live job; its lane must be the one of that partition."""
    ((partition, same),) = queue.run(FIND, job)
    assert same is (None if partition is None else True)
    return partition


def declare(queue, kind, path):
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, partition_by)"
        " VALUES (%s, 'default', 0, 5, 3, 7, 30, %s)",
        kind,
        path,
    )


def test_each_way_to_enqueue_stores_a_named_partition(queue, client):
    jobs = [
        client.enqueue("a:b", partition="acme"),
        client.enqueue("a:b", partition="acme", delay=60),
        client.enqueue("a:b", partition="acme", unique_key="k"),
        client.enqueue("a:b", partition="acme", unique_key="k2", debounce=60),
        client.enqueue("a:b", partition="acme", throttle=60),
        queue.run("""SELECT jobherd.enqueue('a:b', '{}', '{"partition": "acme"}')""")[0][0],
        queue.run("""SELECT jobherd.enqueue('a:b', '{"n": 1}', '{"partition": "acme", "unique": true}')""")[0][0],
        *client.enqueue_many("a:b", [{"n": n} for n in range(300)], partition="acme")[:2],
        *client.enqueue_many("a:b", [{"n": n} for n in range(5)], partition="acme", unique=True)[2:4],
    ]
    assert [of(queue, job) for job in jobs] == ["acme"] * len(jobs)
    plain = client.enqueue("a:b")
    assert of(queue, plain) is None
    assert queue.run("SELECT extras IS NULL, lane FROM jobherd.ready WHERE id = %s", plain) == [(True, None)]
    assert queue.run("SELECT partition FROM jobherd.jobs WHERE id = %s", jobs[0]) == [("acme",)]


def test_kind_takes_the_partition_from_its_payload_or_tenant(queue, client):
    declare(queue, "by:field", ["customer", "id"])
    payload = {"customer": {"id": 7}}
    many = [{"customer": {"id": n % 3}} for n in range(300)]
    ids = client.enqueue_many("by:field", many)
    assert [of(queue, job) for job in ids] == [str(n % 3) for n in range(300)], "COPY is not used"
    assert of(queue, client.enqueue("by:field", payload)) == "7"
    assert of(queue, client.enqueue("by:field", payload, partition="named")) == "named"
    unique = client.enqueue_many("by:field", many[:3], unique=("n",), unique_for=60)
    assert of(queue, unique[0]) == "0"
    assert of(queue, client.enqueue("by:field", payload, unique_key="x", debounce=9)) == "7"
    assert of(queue, queue.run("""SELECT jobherd.enqueue('by:field', '{"customer": {"id": "x"}}')""")[0][0]) == "x"
    for payload in ({}, {"customer": None}, {"customer": {"id": ""}}, {"customer": [1]}):
        assert of(queue, client.enqueue("by:field", payload)) is None
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="is not a text of at most 200 printable characters"):
        client.enqueue("by:field", {"customer": {"id": "x" * 201}})
    declare(queue, "by:tenant", [])
    assert of(queue, client.enqueue("by:tenant", tenant="acme")) == "acme"
    assert of(queue, client.enqueue("by:tenant")) is None


@pytest.mark.parametrize("partition", ["", "x" * 201, "a\nb", 7])
def test_invalid_partition_name_is_rejected_with_the_name_of_the_field(queue, client, partition):
    with pytest.raises(ValueError, match=r"^partition must be a text of 1 to 200 printable characters"):
        client.enqueue("a:b", partition=partition)
    if partition and isinstance(partition, str):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='option "partition" has a bad value'):
            queue.run("SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('partition', %s::text))", partition)


def test_partition_stays_with_the_job_through_retries_and_its_end(queue, client):
    job = client.enqueue("a:b", partition="acme")
    child = queue.child()
    for outcome in ("retry", "snoozed", "abandoned", "failed"):
        token = child.claim(10)[0].token
        assert of(queue, job) == "acme"
        child.settle(token, [job], outcome, error="why")
        assert queue.run("SELECT partition FROM jobherd.jobs WHERE id = %s", job) == [("acme",)]
        queue.run("SELECT jobherd.retry(%s)", job)
    assert of(queue, job) == "acme"


def test_jobs_of_a_tenant_role_have_the_tenant_as_partition(queue, client):
    declare(queue, "by:field", ["customer"])
    queue.run("DROP ROLE IF EXISTS jobherd_test_lane")
    queue.run("CREATE ROLE jobherd_test_lane")
    queue.run("SELECT jobherd.grant_tenant('jobherd_test_lane', 'acme')")
    try:
        queue.run("SET ROLE jobherd_test_lane")
        options = '{"partition": "other"}'
        jobs = [
            queue.run("SELECT jobherd.enqueue(%s, %s, %s)", kind, '{"customer": 7}', given)[0][0]
            for kind, given in (
                ("a:b", options),
                ("a:b", "{}"),
                ("by:field", "{}"),
                ("a:b", '{"partition": "other", "unique": true}'),
                ("a:b", '{"partition": "other", "unique_key": "k", "debounce": 60}'),
            )
        ]
        jobs.append(queue.enqueue("by:field", '{"customer": 7}', partition="other"))
        for values in (
            "jobherd.extras_of('acme', NULL, NULL), jobherd.lane_of('other')",
            "jobherd.with_partition(jobherd.extras_of('acme', NULL, NULL), 'other'), NULL",
        ):
            for table in ("ready", "scheduled"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                    queue.run(f"INSERT INTO jobherd.{table} (kind, extras, lane) VALUES ('a:b', {values})")
        queue.run("RESET ROLE")
        assert [of(queue, job) for job in jobs] == ["acme"] * len(jobs)
    finally:
        queue.run("RESET ROLE")
        queue.run("SELECT jobherd.revoke_tenant('jobherd_test_lane', 'acme')")
        queue.run("DROP ROLE jobherd_test_lane")


def test_a_retry_with_another_payload_keeps_a_named_partition(queue):
    job = queue.enqueue("a:b", queue="crm", partition="acme")
    child = queue.child()
    [row] = child.claim(1)
    child.settle(row.token, [job], "poison", error="no")
    [(new,)] = queue.run("SELECT jobherd.retry_edited(%s, '{}')", job)
    assert queue.run("SELECT partition FROM jobherd.jobs WHERE id = %s", new) == [("acme",)]


def test_a_schedule_whose_payload_names_no_valid_partition_runs_without_one(queue):
    """Otherwise the error would end each maintenance process, and no schedule would run."""
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, partition_by) VALUES ('a:b', 'default', 0, 5, 3, 1, 1, '{customer}')"
    )
    queue.run(
        "INSERT INTO jobherd.schedules (name, kind, every, options, payload, plan_from, next_at)"
        " VALUES ('feed', 'a:b', 3600, '{}', jsonb_build_object('customer', repeat('x', 300)), NULL, now())"
    )
    run = {
        "at": "2026-01-01T00:00:00Z",
        "missed": 0,
        "run_at": "2026-01-01T00:00:00Z",
        "payload": {"customer": "x" * 300},
    }
    queue.run("SELECT jobherd.start_run('feed', 'a:b', '{}', %s::jsonb, 'ran', 'test')", json.dumps(run))
    assert queue.run("SELECT partition FROM jobherd.jobs") == [(None,)]
