"""A claim in turns reads the same number of buffers for each job, whatever the number of partitions and jobs."""

from __future__ import annotations

import pytest

from tests.support.queue import Queue

FILL = """
INSERT INTO jobherd.ready (kind, queue, extras, lane)
SELECT 'a:b', 'crm', jobherd.with_partition(NULL, name), jobherd.lane_of(name)
  FROM (SELECT 'flood' AS name FROM generate_series(1, %s)
        UNION ALL SELECT 'p' || p FROM generate_series(1, %s) AS p, generate_series(1, 10)) AS jobs"""
MOST = 20
"""Most buffers for each claimed job."""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def buffers(child, wanted):
    """Claim. Return the number of jobs and the buffers that the statement touched."""
    before = child.queue.run("SELECT count(*) FROM jobherd.running, unnest(jobs)")[0][0]
    nothing = dict.fromkeys(("limited", "limits", "left_queue", "left_kind")) | {"narrowed": False}
    statement = "EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) " + child.queue.text("claim/claim_gated")
    ((plan,),) = child.connection.execute(statement, child.parameters(wanted) | nothing).fetchall()
    found = plan[0]["Plan"]
    after = child.queue.run("SELECT count(*) FROM jobherd.running, unnest(jobs)")[0][0]
    return after - before, found["Shared Hit Blocks"] + found["Shared Read Blocks"]


def average(child, wanted, claims):
    buffers(child, wanted)  # the first claim reads the catalog
    found = [buffers(child, wanted) for _ in range(claims)]
    assert all(jobs == wanted for jobs, _ in found)
    return sum(read for _, read in found) / sum(jobs for jobs, _ in found)


@pytest.mark.parametrize("partitions", [10, 1_000, 10_000])
def test_large_claim_reads_at_most_20_buffers_per_job(queue, partitions):
    queue.run(FILL, 10_000, partitions)
    queue.run("SELECT jobherd.fair('crm')")
    queue.run("VACUUM ANALYZE jobherd.ready")
    child = queue.child()
    assert average(child, 16, 10) <= MOST


@pytest.mark.parametrize("partitions", [10, 1_000, 10_000])
def test_claim_under_a_partition_limit_reads_little_more_than_under_a_concurrency_limit(queue, partitions):
    queue.run(FILL, 10_000, partitions)
    queue.run("VACUUM ANALYZE jobherd.ready")
    child = queue.child()
    queue.run("SELECT jobherd.set_limit('crm', 1000)")
    plain = average(child, 1, 8)
    queue.run("SELECT jobherd.set_limit('crm', NULL), jobherd.limit_each('crm', 2)")
    assert average(child, 1, 8) <= 1.35 * plain


@pytest.mark.parametrize("partitions", [10, 1_000, 10_000])
def test_claim_under_a_partition_rate_reads_at_most_half_more_than_under_a_partition_limit(queue, partitions):
    queue.run(FILL, 10_000, partitions)
    queue.run("VACUUM ANALYZE jobherd.ready")
    child = queue.child()
    queue.run("SELECT jobherd.limit_each('crm', 20)")
    plain = average(child, 1, 8)
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/min', burst => 20)")
    assert average(child, 1, 8) <= 1.5 * plain


def test_claim_reads_at_most_12_buffers_for_each_partition_without_a_token(queue):
    queue.run(FILL, 0, 2_000)
    queue.run("SELECT jobherd.limit_each_rate('crm', '1/h')")
    queue.run(
        "INSERT INTO jobherd.buckets (scope, name, used_until)"
        " SELECT 'lane', 'crm ' || jobherd.lane_of('p' || n), now() + interval '50 min' FROM generate_series(1, 2000) AS n"
    )
    queue.run("ANALYZE jobherd.buckets")  # no bucket waits yet
    queue.run("UPDATE jobherd.buckets SET waiting_in = 'crm', opens_at = used_until")
    child = queue.child()
    buffers(child, 1)
    jobs, read = buffers(child, 1)
    assert (jobs, read <= 500 * 12) == (0, True), read
