"""`errors` groups failures, and `why` cuts a long error."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import jobherd
from tests.dashboard.test_errors import fail
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def test_errors_groups_failures_and_includes_retrying_jobs(database, queue):
    assert jobherd("errors", dsn=database).err == "jobherd: no job has failed, expired or is retrying in this time\n"
    fail(queue, "mail:send", "ValueError: no such order", count=3)
    fail(queue, "mail:send", "ValueError: no such order", "retry", count=2)
    fail(queue, "card:charge", "Poison: declined", code="DECLINED")
    lines = jobherd("errors", dsn=database, COLUMNS="200").out.splitlines()
    assert lines[0].split() == ["JOBS", "RETRYING", "ERROR", "KIND", "PLACE", "LAST", "FIRST", "EXAMPLE"]
    assert lines[1].split()[:6] == ["5", "2", "ValueError", "mail:send", "mail.py:7", "in"]
    assert lines[2].split()[:4] == ["1", "-", "DECLINED", "card:charge"]
    assert all(len(line) <= 80 for line in jobherd("errors", dsn=database, COLUMNS="80").out.splitlines())
    [one] = json.loads(jobherd("errors", "--json", "--kind", "mail:send", dsn=database).out)
    assert (one["failed"], one["retrying"], one["error"], one["place"]) == (3, 2, "ValueError", "mail.py:7 in send")
    assert sum(one["trend"]) == 5
    assert one["message"] == "ValueError: no such order"
    assert json.loads(jobherd("errors", "--json", "--kind", "no:such", dsn=database).out) == []
    few = jobherd("errors", "--limit", "1", dsn=database)
    assert len(few.out.splitlines()) == 2
    assert "1 smaller groups are not shown" in few.err


def test_errors_lists_only_failures_of_the_given_time(database, queue):
    fail(queue, "mail:send", "ValueError: no such order")
    queue.run(
        "UPDATE jobherd.history SET started_at = started_at - interval '2 h', finished_at = finished_at - interval '2 h'"
    )
    assert "no job has failed" in jobherd("errors", "--since", "1h", dsn=database).err
    assert "ValueError" in jobherd("errors", "--since", "3h", dsn=database).out
    assert jobherd("errors", "--since", "0s", dsn=database).code == 2
    assert jobherd("errors", "--since", "1000y", dsn=database).code == 2


def test_why_cuts_an_error_of_9_kb(database, queue):
    [job] = fail(queue, "mail:send", "RuntimeError: " + "x" * 9_000)
    answer = jobherd("why", job, dsn=database, COLUMNS="80")
    assert answer.code == 0
    assert "failed at" in answer.out
    assert len(answer.out) < 3_000
