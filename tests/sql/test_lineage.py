"""The parent job and trace of a job stay with it in every state, and child jobs are found by index."""

from __future__ import annotations

import json
import re

import psycopg
import pytest

from jobherd import sql
from tests.support.queue import Queue

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WITH_BOTH = f'{{"parent_id": 7, "traceparent": "{TRACE}"}}'


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def origin(queue, job):
    rows = queue.run("SELECT parent_id, traceparent FROM jobherd.jobs WHERE id = %s", job)
    assert len(rows) == 1
    return rows[0]


def child_jobs_of(queue, job):
    return [
        row[0]
        for row in queue.connection.execute(queue.text("dashboard/list_child_jobs"), {"id": job, "most": 50}).fetchall()
    ]


def test_parent_and_trace_stay_with_the_job_and_it_is_found_in_every_state(queue):
    job = queue.run("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb || '{\"delay\": 3600}')", WITH_BOTH)[0][0]
    places = []

    def look():
        places.append(queue.run("SELECT state FROM jobherd.jobs WHERE id = %s", job)[0][0])
        assert origin(queue, job) == (7, TRACE)
        assert child_jobs_of(queue, 7) == [job]

    look()
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s'")
    queue.connection.execute(queue.text("maintenance/promote_due"), {"most": 10})
    look()
    child = queue.child()
    for outcome in ("retry", "abandoned", "failed"):
        token = child.claim(10)[0].token
        look()
        child.settle(token, [job], outcome, error="why")
        look()
        queue.run("SELECT jobherd.retry(%s)", job)
    queue.run("SELECT jobherd.cancel(%s)", job)
    look()
    assert {"scheduled", "ready", "running", "retrying", "failed", "cancelled"} <= set(places)


@pytest.mark.parametrize("more", [" a=1", " a=1 b=2", "  b=2"])
def test_a_trace_keeps_its_state_and_baggage(queue, more):
    with_trace = "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('traceparent', %s::text))"
    assert origin(queue, queue.run(with_trace, TRACE + more)[0][0]) == (None, TRACE + more)


def test_claim_returns_parent_and_trace_and_no_extras_for_other_jobs(queue):
    queue.run("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", WITH_BOTH)
    queue.enqueue_many("a:b", 2)
    told = [row["extras"] for row in queue.child().claim_raw(10)]
    assert told[1:] == [None, None]
    extras = json.loads(told[0])
    assert (extras["parent_id"], extras["traceparent"]) == (7, TRACE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"parent_id": "x"}', 'option "parent_id" has a bad value "x"'),
        ('{"parent_id": 99999999999999999999}', 'option "parent_id"'),
        ('{"traceparent": "00-4bf9"}', 'option "traceparent" has a bad value "00-4bf9": must be like 00-4bf'),
        (f'{{"traceparent": "{TRACE.upper()}"}}', 'option "traceparent"'),
        (f'{{"traceparent": "00-{"0" * 32}-00f067aa0ba902b7-01"}}', 'option "traceparent"'),
        (f'{{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-{"0" * 16}-01"}}', 'option "traceparent"'),
        (f'{{"traceparent": "ff{TRACE[2:]}"}}', 'option "traceparent"'),
        (f'{{"traceparent": "{TRACE}\\n"}}', 'option "traceparent"'),
        (f'{{"traceparent": "{TRACE} a=1\\n"}}', 'option "traceparent"'),
        (f'{{"traceparent": "{TRACE} a=1 b=2 c=3"}}', 'option "traceparent"'),
        (f'{{"traceparent": "00-{"0" * 32}-00f067aa0ba902b7-01 a=1"}}', 'option "traceparent"'),
        (f'{{"traceparent": "{TRACE} a={"1" * 1000}"}}', 'option "traceparent"'),
    ],
)
def test_enqueue_rejects_an_invalid_parent_or_trace_and_names_the_option(queue, options, says):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
        queue.run("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", options)


@pytest.mark.parametrize("table", ["ready", "parked", "scheduled", "history"])
def test_child_jobs_are_found_by_index(queue, table):
    statement, names = sql.numbered("dashboard/list_child_jobs")
    queue.run("SET enable_seqscan = off")  # the tables are empty; the test checks only whether an index can be used
    given = {"id": "7", "most": "50"}
    queue.run(f"PREPARE found AS {statement}")
    plan = "\n".join(row[0] for row in queue.run(f"EXPLAIN EXECUTE found ({', '.join(given[name] for name in names)})"))
    # PostgreSQL names the index of a partition
    own = {"history": "history_default_[a-z_]+_id_idx"}.get(table, f"{table}_parent")
    assert re.search(f"Index Scan (using|on) {own} ", plan), plan
