"""Rows at the limits of what the tables accept, from a role that may only enqueue: none of them ends a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage

JOBS = """
from typing import Any
from jobherd import Job, handler

@handler("row:any", max_attempts=1, max_crashes=1)
def anything(job: Job, n: Any = None, **rest: Any) -> None:
    str(job.tenant), str(job.webhook), str(job.traceparent), job.parent_id, job.payload_bytes, job.created_at, job.run_at, job.remaining()

@handler("row:several", batch=5, max_attempts=1, max_crashes=1)
def several(jobs: list[Job], documents: list[Any]) -> None:
    for job in jobs:
        str(job.tenant), job.parent_id, job.payload_bytes, job.created_at, job.run_at, job.remaining()

@handler("row:transaction", transactional=True, max_attempts=1, max_crashes=1)
def transaction(job: Job, n: Any = None) -> None: ...
"""
EMPTY = ""
VALUES = {
    "payload": [
        "'null'", "'1'", r"""'"\ud800"'""", r"""'"\u0000"'""", r"""'{"\u0000": 1}'""", "'{\"n\": 1e999999}'", "'{\"n\": -0.0, \"n\": 2}'",
        "('{\"n\": ' || repeat('9', 100000) || '}')::json", "(repeat('[', 5000) || repeat(']', 5000))::json",
        "('{\"n\": ' || repeat('[', 1500) || repeat(']', 1500) || '}')::json", "('{\"n\": \"' || repeat('\U0001f600', 3000000) || '\"}')::json",
        "(SELECT json_object_agg('k' || i, i) FROM generate_series(1, 100000) i)",
    ],
    "extras": [
        f"jsonb_populate_record(NULL::jobherd.extras, jsonb_build_object({value}))"
        for value in (
            "'tenant', E'\\x01\\x1b[31m\u202e'", "'tenant', repeat('t', 1000000)", "'tenant', '', 'webhook', '', 'payload_bytes', '', 'parent_id', 0, 'traceparent', ''",
            "'webhook', 'no url'", "'payload_bytes', convert_to(repeat('b', 20000000), 'UTF8')", "'parent_id', -9223372036854775808",
            "'parent_id', 9223372036854775807", "'traceparent', 'no trace'", "'traceparent', repeat('0', 1000000)",
            "'traceparent', '00-00000000000000000000000000000000-0000000000000000-ff'", EMPTY,
        )
    ],
    "priority": ["-32768", "32767"],
    "max_attempts": ["1", "32767"],
    "timeout": ["5e-324", "1e-9", "1e300", "1.7e308", "0.0001"],
    "run_at": ["'1900-01-01 00:00:01Z'", "'1969-12-31 23:59:59Z'"],
    "expires_at": ["'1900-01-01 00:00:01Z'", "'8999-12-31 23:59:59Z'", "now() + interval '1 microsecond'"],
    "queue": ["'0'", "repeat('q', 63)", "'_'"],
}  # fmt: skip
OVER = {"completed", "failed", "expired"}


@pytest.mark.timeout(300)
def test_no_row_that_a_producer_can_insert_ends_a_worker(stage: Stage):
    stage.run("DROP FUNCTION t_note CASCADE")  # it reads each row as jsonb, which fails for some of these
    stage.run("SELECT jobherd.enable_webhooks()")
    fleet = stage.run_fleet(workers=1, poll="300s", handlers=stage.write("jobs.py", JOBS), claim_size=20)
    jobs = []
    with psycopg.connect(stage.dsn, autocommit=True) as producer:
        producer.execute("SET ROLE jobherd_enqueue")
        for kind in ("row:any", "row:several", "row:transaction"):
            with producer.transaction():
                for column, values in VALUES.items():
                    for value in values:
                        row = f"INSERT INTO jobherd.ready (kind, {column}) VALUES (%s, {value}) RETURNING id"
                        jobs.append(producer.execute(row, [kind]).fetchone()[0])
    look = "SELECT count(*) FROM jobherd.history WHERE id = ANY (%s)"
    stage.wait(
        lambda: stage.run(look, jobs) == [(len(jobs),)],
        lambda: str(stage.run("SELECT id, kind, state FROM jobherd.jobs WHERE state <> 'completed'")),
        limit=200,  # hundreds of megabytes
    )
    assert {
        state for (state,) in stage.run("SELECT DISTINCT state FROM jobherd.history WHERE id = ANY (%s)", jobs)
    } <= OVER
    crashed = "SELECT id, kind, error FROM jobherd.history WHERE crashes > 0 OR error_code IN ('WORKER_CRASHED', 'JOB_INVALID')"
    assert stage.run(crashed) == []
    assert stage.run("SELECT id FROM jobherd.ready WHERE alone OR crashes > 0") == []
    fleet.drain()
    assert {event["cause"] for event in fleet.log if "cause" in event} <= {"recycled"}, (
        "workers were only replaced after a timeout, and none died"
    )
