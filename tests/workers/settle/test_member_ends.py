"""A worker reports that jobs have ended for which others may wait, after their settlement, and reports nothing else."""

from __future__ import annotations

import json
import os

import pytest

from jobherd import Client
from jobherd.workers.ipc.pipes import Inbox, MembersEnded, open_pipe
from jobherd.workers.job.row import JobRow
from jobherd.workers.settle import member_ends
from jobherd.workers.settle.member_ends import PAUSE, MemberEnds, has_members
from tests.support.seats import Bench

ENDED = "SELECT state FROM jobherd.jobs WHERE id = %(job)s"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("act:nothing", {}), ("act:returns", {"value": 1}), ("act:raises", {}), ("act:transactional", {})],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 3], ids=["one", "several"])
def test_a_worker_reports_the_end_of_a_member_after_its_settlement(bench: Bench, kind: str, payload: object, size: int):
    child = bench.start(most_claimed=size)
    nodes = [{"node": "one", "kind": kind, "payloads": [json.dumps(payload)] * size, "options": {"max_attempts": 1}}]
    bench.ask("SELECT jobherd.start_flow('reported', %(nodes)s::jsonb)", nodes=json.dumps(nodes))
    child.nudge()
    child.wait_report(MembersEnded)
    assert bench.ask("SELECT count(*) AS ends FROM jobherd.ends")[0]["ends"] >= 1, "the report comes after the commit"


@pytest.mark.parametrize(
    ("kind", "payload"), [("act:nothing", {}), ("act:returns", {"value": 1})], ids=["ahead", "with_the_claim"]
)
def test_ends_of_the_members_of_a_full_claim_are_stored_in_one_row(bench: Bench, kind: str, payload: object):
    """If all jobs of a full claim succeed, the worker claims again before their settlement is confirmed, or with it."""
    nodes = [{"node": "one", "kind": kind, "payloads": [json.dumps(payload)] * 6}]
    bench.ask("SELECT jobherd.start_flow('together', %(nodes)s::jsonb)", nodes=json.dumps(nodes))
    child = bench.start(most_claimed=2)
    child.wait_report(MembersEnded)
    child.wait_idle()
    rows = bench.ask("SELECT coalesce(cardinality(jobs), 1) AS jobs, delta FROM jobherd.ends")
    assert {row["jobs"] for row in rows} >= {2}
    assert all(row["delta"] == -row["jobs"] for row in rows)
    assert sum(row["jobs"] for row in rows) == 6


def test_a_worker_reports_the_end_of_a_job_that_others_wait_for_and_of_no_other(bench: Bench):
    plain = bench.enqueue("act:nothing")
    child = bench.start()
    bench.wait(plain, "completed")
    child.wait_idle()
    assert not [report for report in child.heard if isinstance(report, MembersEnded)]
    with Client(bench.dsn) as client:
        first = client.enqueue("act:nothing", delay="1h")
        client.enqueue("act:nothing", after=first)
        bench.ask("SELECT jobherd.mark_upstreams(NULL, 10)")
        client.retry(first)
    child.nudge()
    child.wait_report(MembersEnded)
    assert bench.ask(ENDED, job=first)[0]["state"] == "completed"


@pytest.mark.parametrize(
    ("extras", "found"),
    [
        (None, False),
        ('{"tenant":"us","flow":null,"node":null}', False),
        ('{"tenant":null,"flow":7,"node":"a"}', True),
        ('{"tenant":null,"flow":0,"node":null}', True),
        ('{"partition":"\\"flow\\":null","flow":7}', True),
    ],
)
def test_member_is_recognized_by_its_extras(extras, found):
    plain = JobRow(1, 7, "a:b", "default", "{}", 1, None, 0, 0, None, 0.0, 0.0, None, 0.0, more=False)
    assert has_members([plain, plain._replace(extras=extras)]) is found


def test_reports_within_the_pause_are_combined_and_none_is_lost(monkeypatch: pytest.MonkeyPatch):
    reading, writing = open_pipe()
    now = [100.0]
    monkeypatch.setattr(member_ends.time, "monotonic", lambda: now[0])
    with os.fdopen(reading, "rb", buffering=0) as pipe, os.fdopen(writing, "wb", buffering=0):
        ends, inbox = MemberEnds(writing), Inbox()
        ends.flush()
        ends.note()
        assert inbox.take(pipe.read(64)) == [MembersEnded()]
        ends.note()
        ends.note()
        assert pipe.read(64) is None
        ends.flush()
        assert inbox.take(pipe.read(64)) == [MembersEnded()]
        ends.flush()
        assert pipe.read(64) is None
        now[0] += 2 * PAUSE
        ends.note()
        assert inbox.take(pipe.read(64)) == [MembersEnded()]
