"""Jobherd on a database with logical replication.

With a publication for all tables, PostgreSQL rejects the deletion of rows that a replica could not identify.
"""

from __future__ import annotations

import pytest

from tests.sql.test_gates import gated
from tests.support.queue import Queue

UNKNOWN = """
    SELECT c.oid::regclass::text
      FROM pg_class c
     WHERE c.relnamespace = 'jobherd'::regnamespace AND c.relkind IN ('r', 'p') AND c.relreplident <> 'f'
       AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary ELSE false END)
"""


@pytest.fixture
def published(database):
    with Queue(database) as queue:
        queue.run("CREATE PUBLICATION everything FOR ALL TABLES")
        yield queue


def test_every_table_has_a_replica_identity(published):
    published.run("SELECT jobherd.keep_partitions(2)")
    assert published.run(UNKNOWN) == []


def test_all_job_operations_work_when_all_tables_are_published(published):
    queue = published
    queue.run("SELECT jobherd.keep_partitions(40)")
    child = queue.child()
    job = queue.enqueue("a:b")
    (claimed,) = child.claim(1)
    assert child.settle(claimed.token, [job], "retry", delay=60.0, code="AGAIN", error="again") == [job]
    assert queue.retry(job) == "ready"
    (claimed,) = child.claim(1)
    assert child.settle(claimed.token, [job], "failed", code="NO", error="no") == [job]
    assert queue.retry(job) == "ready"
    queue.run("SELECT jobherd.pause(kind => 'a:b')")
    assert gated(child) == []
    assert queue.count("parked") == 1
    queue.run("SELECT jobherd.resume(kind => 'a:b')")
    assert queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10}).rowcount == 1
    assert queue.cancel(job) == "cancelled"
    assert queue.run("SELECT jobherd.delete(%s)", job) == [("deleted",)]
    assert [queue.count(table) for table in ("ready", "parked", "scheduled", "running", "history", "attempts")] == [
        0
    ] * 6


def test_old_history_is_deleted_when_all_tables_are_published(published):
    queue = published
    child = queue.child()
    for keep in (0, 3):
        job = queue.enqueue("a:b")
        (claimed,) = child.claim(1)
        child.settle(claimed.token, [job], "failed", code="NO", error="no", keep=keep)
    queue.run(
        "UPDATE jobherd.history SET drop_on = drop_on - 1 WHERE drop_on = (now() AT TIME ZONE 'UTC')::date"
    )  # a row is kept until its last day ends
    queue.run("SELECT jobherd.keep_partitions(3)")
    assert queue.run("SELECT count(*) FROM jobherd.history_default") == [(0,)], (
        "old rows are deleted, the others are in their partitions"
    )
    assert queue.count("history") == 1
