"""Retry of a flow from one of its nodes, and the counts of flows whose members were retried by hand."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.sql.test_after import end, resolve
from tests.sql.test_flows import payload, places, run, start, state
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def retry(queue, flow, node=None):
    return queue.run("SELECT jobherd.retry_flow(%s, from_node => %s)", flow, node)[0][0]


def job_of(queue, kind):
    return queue.run("SELECT id FROM jobherd.history WHERE kind = %s", kind)[0][0]


CHAIN = (
    {"node": "fetch", "payload": {"url": "x"}},
    {"node": "parse", "payload": {"deep": True}, "bind": {"page": "fetch"}},
    {"node": "store", "bind": {"rows": "parse"}},
    {"node": "other"},
)


def test_completed_flow_runs_again_from_a_node_with_new_results(queue):
    flow = start(queue, *CHAIN, {"node": "good", "on": "success"})
    for result in ("text", None, [1], None, None):
        run(queue, result=result)
    assert state(queue, flow) == ("completed", 0, 4, 0, 0)
    assert retry(queue, flow, "parse") == 2
    assert places(queue) == {
        "a:fetch": "completed", "a:parse": "ready", "a:store": "blocked", "a:other": "completed", "a:good": "completed",
    }  # fmt: skip
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 2, 0, 0)
    assert payload(queue, "a:parse") == {"deep": True, "page": "text"}
    run(queue, result=[2, 3])
    assert queue.run("SELECT payload::text FROM jobherd.jobs WHERE kind = 'a:store'")[0][0].count('"rows"') == 1
    assert payload(queue, "a:store") == {"rows": [2, 3]}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 4, 0, 0)
    assert places(queue)["a:good"] == "completed", "the on=success node runs once"
    assert queue.run("SELECT target FROM jobherd.audit") == [({"flow": flow, "from": "parse"},)]


def test_retry_from_a_node_leaves_jobs_that_do_not_depend_on_it(queue):
    flow = start(queue, *CHAIN, policy="continue")
    run(queue, "failed")
    run(queue, "failed")
    assert state(queue, flow) == ("failed", 0, 0, 2, 2)
    assert retry(queue, flow, "fetch") == 3
    assert places(queue) == {"a:fetch": "ready", "a:parse": "blocked", "a:store": "blocked", "a:other": "failed"}
    for _ in range(3):
        run(queue, result=1)
    assert state(queue, flow) == ("failed", 0, 3, 1, 0)


JOINED = (
    {"node": "left"},
    {"node": "right"},
    {"node": "right-end", "after": ["right"]},
    {"node": "join", "after": ["left", "right-end"]},
    {"node": "report", "after": ["right-end"]},
    {"node": "apart", "options": {"delay": "1h"}},
)


def test_canceled_branch_runs_again_if_a_retried_node_depends_on_it(queue):
    flow = start(queue, *JOINED)
    run(queue, "failed")
    assert set(places(queue).values()) == {"failed", "cancelled"}
    assert retry(queue, flow, "left") == 5
    assert places(queue) == {
        "a:left": "ready", "a:right": "ready", "a:right-end": "blocked", "a:join": "blocked", "a:report": "blocked",
        "a:apart": "cancelled",
    }  # fmt: skip
    for _ in range(5):
        run(queue)
    assert state(queue, flow) == ("cancelled", 0, 5, 0, 1)


def test_mapped_node_with_failed_items_runs_again_if_a_retried_node_depends_on_it(queue):
    flow = start(queue, *MAPPED, {"node": "left"}, {"node": "join", "after": ["left", "page"]}, policy="continue")
    left = queue.run("SELECT id FROM jobherd.ready WHERE kind = 'a:left'")[0][0]
    run(queue, result=["x", "y"])
    while queue.count("ready"):
        run(queue, "failed")
    assert places(queue)["a:join"] == "cancelled"
    assert retry(queue, flow, "left") == 5, "left, join, two items, and the sum of their results"
    assert places(queue)["a:left"] == "ready"
    assert queue.states([left]) == ["ready"]
    while queue.count("ready"):
        run(queue, result=1)
    assert state(queue, flow)[0] == "completed"


MAPPED = (
    {"node": "index"},
    {"node": "page", "payload": {"deep": 1}, "bind": {"url": "index"}, "map": "url", "options": {"priority": 7}},
    {"node": "sum", "bind": {"n": "page"}},
)


@pytest.mark.parametrize("node", ["index", "page"])
def test_retried_mapped_node_gets_one_job_for_each_item_again(queue, node):
    flow = start(queue, *MAPPED)
    for result in (["x", "y"], 1, 2, None):
        run(queue, result=result)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)
    assert retry(queue, flow, node) == {"index": 3, "page": 2}[node]
    resolve(queue)
    if node == "index":
        assert state(queue, flow) == ("open", 3, 0, 0, 0)
        run(queue, result=["z"])
    items = queue.run("SELECT payload::text, priority FROM jobherd.ready ORDER BY id")
    wanted = ["z"] if node == "index" else ["x", "y"]
    assert [(json.loads(text), priority) for text, priority in items] == [
        ({"deep": 1, "url": one}, 7) for one in wanted
    ]
    for _ in wanted:
        run(queue, result=5)
    assert payload(queue, "a:sum") == {"n": [5] * len(wanted)}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)
    earlier = queue.run("SELECT count(*) FROM jobherd.history WHERE kind = 'a:page' AND (extras).flow IS NULL")
    assert earlier == [(2,)], "the earlier jobs are in the history"


def test_flow_retry_is_rejected_while_a_job_of_a_mapped_node_is_unfinished(queue):
    flow = start(queue, *MAPPED)
    for result in (["x"], 1, None):
        run(queue, result=result)
    queue.run("SELECT jobherd.retry(%s)", job_of(queue, "a:page"))
    resolve(queue)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="one of them was run again and has not ended"):
        retry(queue, flow, "index")
    run(queue)
    assert retry(queue, flow, "index") == 3


def test_flow_retry_rejects_an_unknown_node_and_leaves_an_open_flow(queue):
    flow = start(queue, *CHAIN)
    assert retry(queue, flow, "fetch") == 0
    for _ in range(4):
        run(queue)
    assert retry(queue, flow) == 0
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match="has no job of a node 'fech' that has ended"
    ) as problem:
        retry(queue, flow, "fech")
    assert problem.value.diag.message_hint == "Nodes: fetch, parse, store, other."
    assert retry(queue, 99999, "fetch") is None


def test_retried_flow_waits_for_a_member_that_was_retried_by_hand(queue):
    flow = start(queue, {"node": "a"}, {"node": "b"}, policy="continue")
    run(queue, "failed")
    run(queue, "failed")
    queue.run("SELECT jobherd.retry(%s)", job_of(queue, "a:a"))
    resolve(queue)
    assert retry(queue, flow) == 1
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 0, 0, 0)
    run(queue)
    assert state(queue, flow) == ("open", 1, 1, 0, 0)
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)


def test_flow_retry_completes_a_flow_whose_failed_member_was_retried_by_hand(queue):
    flow = start(queue, {"node": "a"}, {"node": "good", "on": "success"})
    run(queue, "failed")
    queue.run("SELECT jobherd.retry(%s)", job_of(queue, "a:a"))
    resolve(queue)
    run(queue)
    assert state(queue, flow) == ("failed", 0, 0, 1, 0)
    assert retry(queue, flow) == 0
    resolve(queue)
    assert state(queue, flow) == ("completed", 0, 1, 0, 0)
    assert places(queue) == {"a:a": "completed", "a:good": "ready"}


def test_member_that_was_not_needed_can_run_after_a_flow_retry(queue):
    flow = start(
        queue,
        {"node": "a"},
        {"node": "b", "after": ["a"], "when": "failed"},
        {"node": "bad", "on": "failure"},
        policy="continue",
    )
    queue.cancel(queue.run("SELECT id FROM jobherd.ready")[0][0])
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 1)
    assert places(queue) == {"a:a": "cancelled", "a:b": "cancelled", "a:bad": "cancelled"}
    assert retry(queue, flow) == 2
    run(queue, "failed")
    assert places(queue) == {"a:a": "failed", "a:b": "ready", "a:bad": "blocked"}
    run(queue)
    assert state(queue, flow) == ("failed", 0, 1, 1, 0)
    assert places(queue)["a:bad"] == "ready"


def test_flow_retry_does_not_requeue_a_member_of_another_flow(queue):
    flow = start(queue, {"node": "a"})
    other = start(queue, {"node": "b", "after": [flow]}, {"node": "c"}, policy="continue")
    end(queue, "failed")
    resolve(queue)
    assert state(queue, other) == ("open", 1, 0, 0, 1)
    assert retry(queue, flow) == 1
    resolve(queue)
    assert places(queue)["a:b"] == "cancelled"
    assert state(queue, other) == ("open", 1, 0, 0, 1)


def test_unneeded_member_retried_by_hand_does_not_lower_the_counts(queue):
    flow = start(
        queue, {"node": "a"}, {"node": "b", "after": ["a"], "when": "failed"}, {"node": "c"}, policy="continue"
    )
    run(queue)
    queue.run("SELECT jobherd.retry(%s)", job_of(queue, "a:b"))
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 1, 0, 0)


@pytest.mark.parametrize("role", ["jobherd_enqueue", "jobherd_read", "jobherd_work", "jobherd_admin"])
def test_only_roles_that_may_retry_jobs_can_retry_a_flow_from_a_node(queue, role):
    flow = start(queue, *MAPPED)
    for result in (["x", "y"], 1, 2, None):
        run(queue, result=result)
    before = places(queue)
    queue.run(f"SET ROLE {role}")
    if role in {"jobherd_enqueue", "jobherd_read"}:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            retry(queue, flow, "index")
        queue.run("RESET ROLE")
        assert places(queue) == before
        return
    assert retry(queue, flow, "index") == 3
    queue.run("RESET ROLE")
    assert places(queue) != before
    assert queue.run("SELECT target FROM jobherd.audit") == [({"flow": flow, "from": "index"},)]
