"""If one claim finishes several members of a flow, their ends are written in one row."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from jobherd import sql
from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished, settlement
from tests.sql.test_after import resolve
from tests.support.queue import Line, Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def child(queue):
    return queue.child()


def settled(child, jobs, *, keep=3):
    done = [Finished(job.id, OK, ran=0.1, keep=keep) for job in jobs]
    given = settlement(child.id, jobs[0].token, done, ran_on="host/1", now=1.0)
    return Line(child.connection, child.id).run("settle/settle_members", given)


def group(queue, members):
    nodes = [
        {"node": "member", "kind": "a:b", "payloads": ["{}"] * members},
        {"node": "after", "kind": "a:after", "on": "success"},
    ]
    return queue.run("SELECT jobherd.start_flow('group', %s::jsonb)", orjson.dumps(nodes).decode())[0][0]


def ends(queue):
    return queue.run("SELECT flow, job, jobs, state, delta FROM jobherd.ends ORDER BY flow, job")


@pytest.mark.parametrize("keep", [3, 0])
def test_ends_of_members_of_one_flow_are_written_in_one_row(queue, child, keep):
    flow = group(queue, 3)
    jobs = child.claim(3)
    assert settled(child, jobs, keep=keep) == [(3,)]
    assert ends(queue) == [(flow, None, [job.id for job in jobs], "completed", -3)]
    assert queue.run("SELECT count(*) FROM jobherd.history WHERE (extras).flow = %s", flow) == [(3,)]


def test_one_claim_settles_jobs_of_several_flows_and_of_none(queue, child):
    flows = [group(queue, 2), group(queue, 1)]
    upstream = queue.enqueue("a:b")
    queue.run("SELECT jobherd.enqueue('a:later', '{}', options => %s)", orjson.dumps({"after": [upstream]}).decode())
    queue.run("UPDATE jobherd.ready SET extras.flow = 0 WHERE id = %s", upstream)
    plain = queue.enqueue("a:b")
    jobs = child.claim(5)
    assert settled(child, jobs) == [(5,)]
    by_flow = {
        flow: [row[0] for row in queue.run("SELECT id FROM jobherd.history WHERE (extras).flow = %s ORDER BY id", flow)]
        for flow in flows
    }
    assert ends(queue) == [
        (0, upstream, None, "completed", -1),
        (flows[0], None, by_flow[flows[0]], "completed", -2),
        (flows[1], None, by_flow[flows[1]], "completed", -1),
    ]
    assert queue.run("SELECT state FROM jobherd.jobs WHERE id = %s", plain) == [("completed",)]


def test_flow_counts_its_members_once_and_runs_the_next_node(queue, child):
    flow = group(queue, 3)
    assert settled(child, child.claim(3)) == [(3,)]
    resolve(queue)
    assert queue.run("SELECT pending, completed, state FROM jobherd.flows WHERE id = %s", flow) == [(0, 3, "completed")]
    assert queue.run("SELECT state FROM jobherd.jobs WHERE kind = 'a:after'") == [("ready",)]


def test_job_that_waits_for_a_member_becomes_ready(queue, child):
    group(queue, 3)
    member = queue.run("SELECT max(id) FROM jobherd.ready")[0][0]
    later = queue.run(
        "SELECT jobherd.enqueue('a:later', '{}', options => %s)", orjson.dumps({"after": [member]}).decode()
    )[0][0]
    assert settled(child, child.claim(3)) == [(3,)]
    resolve(queue)
    assert queue.states([later]) == ["ready"]


def test_member_that_fails_after_a_retry_by_hand_is_counted_once(queue, child):
    flow = group(queue, 1)
    [job] = child.claim(1)
    assert settled(child, [job]) == [(1,)]
    queue.run("SELECT jobherd.retry(%s)", job.id)
    [again] = child.claim(1)
    child.settle(again.token, [again.id], "failed", error="why", keep=3)
    assert queue.run("SELECT sum(delta) FROM jobherd.ends WHERE flow = %s", flow) == [(-1,)]


def test_settle_members_equals_settle_completed_except_for_the_ends():
    """The two texts must not drift apart."""

    def text(name):
        return " ".join(
            re.sub(
                r"--.*", "", Path(sql.__file__).with_name("queries").joinpath(f"settle/{name}.sql").read_text()
            ).split()
        )

    members = text("settle_members")
    for part in (
        ", end_noted",
        ", CASE WHEN (extras).flow IS NOT NULL THEN true END",
        re.search(r", noted AS \(.*? GROUP BY m\.flow, m\.job \)", members)[0],
    ):
        assert part in members
        members = members.replace(part, "", 1)
    assert members == text("settle_completed")
