"""Flows: a common end, results passed to later jobs, and a retry from the failed job."""

from __future__ import annotations

import json
import time

import psycopg
import pytest

from jobherd.workers.job.row import MEMBER
from tests.sql.test_after import end, resolve
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def start(queue, *nodes, **options):
    nodes = [{"kind": f"a:{node['node']}", **node} for node in nodes]
    return queue.run("SELECT jobherd.start_flow('test', %s::jsonb, %s::jsonb)", json.dumps(nodes), json.dumps(options))[
        0
    ][0]


def state(queue, flow):
    return queue.run("SELECT state, pending, completed, failed, cancelled FROM jobherd.flows WHERE id = %s", flow)[0]


def places(queue):
    """Return the states of the jobs by kind: a text for one job, a sorted list for several."""
    rows = queue.run("SELECT kind, state FROM jobherd.jobs ORDER BY id")
    found = {}
    for kind, place in rows:
        found.setdefault(kind, []).append(place)
    return {kind: ones[0] if len(ones) == 1 else sorted(ones) for kind, ones in found.items()}


def payload(queue, kind):
    return json.loads(queue.run("SELECT payload::text FROM jobherd.jobs WHERE kind = %s", kind)[0][0])


def run(queue, outcome="ok", result=None, **options):
    if result is not None:
        options["result"] = json.dumps(result)
    job = end(queue, outcome, **options)
    resolve(queue)
    return job


def test_chain_passes_each_result_to_the_next_job(queue):
    flow = start(
        queue,
        {"node": "fetch", "payload": {"url": "x"}},
        {"node": "parse", "bind": {"page": "fetch"}},
        {"node": "store", "payload": {"table": "t"}, "bind": {"rows": "parse"}},
    )
    assert places(queue) == {"a:fetch": "ready", "a:parse": "blocked", "a:store": "blocked"}
    assert state(queue, flow) == ("open", 3, 0, 0, 0)
    run(queue, result={"text": "a\u0000b"})
    assert payload(queue, "a:parse") == {"page": {"text": "a\u0000b"}}
    run(queue, result=[1, "}"])
    assert payload(queue, "a:store") == {"table": "t", "rows": [1, "}"]}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)
    assert queue.run("SELECT (extras).flow, (extras).node FROM jobherd.history ORDER BY id") == [
        (flow, "fetch"), (flow, "parse"), (flow, "store")
    ]  # fmt: skip


GROUP = {"node": "one", "payloads": ["{}", '{"n":1}', '{"n": 2}']}
CALLBACKS = [
    {"node": "good", "on": "success", "results": "found"},
    {"node": "bad", "on": "failure"},
    {"node": "tidy", "on": "done"},
]


def test_successful_group_starts_the_success_and_done_callbacks_with_all_results(queue):
    flow = start(queue, GROUP, *CALLBACKS, policy="continue")
    for number in range(3):
        assert places(queue)["a:good"] == "blocked"
        run(queue, result=number)
    assert places(queue) == {"a:one": ["completed"] * 3, "a:good": "ready", "a:bad": "cancelled", "a:tidy": "ready"}
    assert payload(queue, "a:good") == {"found": [0, 1, 2]}
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)


def test_group_with_a_failure_starts_the_failure_and_done_callbacks(queue):
    flow = start(queue, GROUP, *CALLBACKS, policy="continue")
    run(queue)
    run(queue, "failed")
    assert places(queue)["a:bad"] == "blocked", "other jobs of the group are not finished"
    run(queue)
    assert places(queue) == {
        "a:one": ["completed", "completed", "failed"], "a:good": "cancelled", "a:bad": "ready", "a:tidy": "ready"
    }  # fmt: skip
    assert state(queue, flow) == ("failed", 0, 2, 1, 0)


def test_empty_group_succeeds_immediately(queue):
    flow = start(queue, {**GROUP, "payloads": []}, *CALLBACKS)
    resolve(queue)
    assert places(queue)["a:good"] == "ready"
    assert payload(queue, "a:good") == {"found": []}
    assert state(queue, flow) == ("completed", 0, 0, 0, 0)


MAP = [
    {"node": "index"},
    {"node": "page", "payload": {"deep": True}, "bind": {"url": "index"}, "map": "url"},
    {"node": "sum", "bind": {"counts": "page"}},
]


def test_mapped_node_gets_a_job_for_each_item_of_a_list(queue):
    flow = start(queue, *MAP)
    run(queue, result=["x", "y"])
    assert places(queue) == {"a:index": "completed", "a:page": ["ready", "ready"], "a:sum": "blocked"}
    assert [json.loads(row[0]) for row in queue.run("SELECT payload::text FROM jobherd.ready ORDER BY id")] == [
        {"deep": True, "url": "x"}, {"deep": True, "url": "y"}
    ]  # fmt: skip
    run(queue, result=1)
    run(queue, result=2)
    assert payload(queue, "a:sum") == {"counts": [1, 2]}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)


def test_mapped_node_of_an_empty_list_gets_no_job_and_passes_an_empty_list(queue):
    flow = start(queue, *MAP)
    run(queue, result=[])
    assert payload(queue, "a:sum") == {"counts": []}
    run(queue)
    assert state(queue, flow)[0] == "completed"


@pytest.mark.parametrize("result", [None, {"a": 1}, "text"])
def test_mapped_node_fails_if_the_result_is_not_a_list(queue, result):
    flow = start(queue, *MAP)
    run(queue, result=result)
    assert queue.run("SELECT error_code, state FROM jobherd.history WHERE kind = 'a:page'") == [
        ("RESULTS_INVALID", "failed")
    ]
    assert state(queue, flow)[:1] == ("failed",)


def test_failure_cancels_the_waiting_and_running_jobs_of_the_flow(queue):
    flow = start(
        queue,
        {"node": "one"},
        {"node": "two"},
        {"node": "three", "after": ["one"]},
        {"node": "four", "options": {"delay": "1h"}},
    )
    child = queue.child()
    first, second = child.claim(1)[0], child.claim(1)[0]
    child.settle(first.token, [first.id], "failed", code="NO", error="why")
    resolve(queue)
    assert places(queue) == {"a:one": "failed", "a:two": "running", "a:three": "cancelled", "a:four": "cancelled"}
    assert queue.run("SELECT job FROM jobherd.cancels") == [(second.id,)]
    child.settle(second.token, [second.id], "cancelled", code="JOB_CANCELLED", error="why")
    resolve(queue)
    assert state(queue, flow) == ("failed", 0, 0, 1, 3)


def test_policy_continue_cancels_only_jobs_that_wait_for_the_failed_job(queue):
    flow = start(queue, {"node": "one"}, {"node": "two"}, {"node": "three", "after": ["one"]}, policy="continue")
    run(queue, "failed")
    assert places(queue) == {"a:one": "failed", "a:two": "ready", "a:three": "cancelled"}
    run(queue)
    assert state(queue, flow) == ("failed", 0, 1, 1, 1)


def test_flow_completes_although_an_unneeded_failure_branch_is_canceled(queue):
    flow = start(queue, {"node": "one"}, {"node": "repair", "after": ["one"], "when": "failed"}, *CALLBACKS[2:])
    run(queue)
    assert places(queue) == {"a:one": "completed", "a:repair": "cancelled", "a:tidy": "ready"}
    assert state(queue, flow) == ("completed", 0, 1, 0, 0)


def test_retry_flow_continues_a_flow_from_its_failed_job(queue):
    flow = start(
        queue, {"node": "one"}, {"node": "two", "bind": {"n": "one"}}, {"node": "three", "bind": {"n": "two"}},
        {"node": "good", "on": "success"},
    )  # fmt: skip
    run(queue, result=7)
    run(queue, "failed")
    assert places(queue) == {"a:one": "completed", "a:two": "failed", "a:three": "cancelled", "a:good": "cancelled"}
    assert queue.run("SELECT jobherd.retry_flow(%s)", flow) == [(2,)]
    resolve(queue)
    assert places(queue) == {"a:one": "completed", "a:two": "ready", "a:three": "blocked", "a:good": "blocked"}
    assert payload(queue, "a:two") == {"n": 7}
    assert state(queue, flow) == ("open", 2, 1, 0, 0)
    run(queue, result=8)
    assert payload(queue, "a:three") == {"n": 8}
    run(queue)
    assert places(queue)["a:good"] == "ready"
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)
    assert queue.run("SELECT jobherd.retry_flow(%s), jobherd.retry_flow(99999)", flow) == [(0, None)]


def test_retry_flow_runs_only_the_failed_jobs_of_a_map_again(queue):
    flow = start(queue, *MAP)
    run(queue, result=["x", "y"])
    run(queue, result=1)
    run(queue, "failed")
    assert places(queue)["a:sum"] == "cancelled"
    assert queue.run("SELECT jobherd.retry_flow(%s)", flow) == [(2,)]
    resolve(queue)
    assert places(queue) == {"a:index": "completed", "a:page": ["completed", "ready"], "a:sum": "blocked"}
    run(queue, result=2)
    assert payload(queue, "a:sum") == {"counts": [1, 2]}
    run(queue)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)


def test_canceled_flow_ends_and_can_be_run_again(queue):
    flow = start(queue, {"node": "one"}, {"node": "two", "after": "one"})
    assert queue.run("SELECT jobherd.cancel_flow(%s)", flow) == [("cancelling",)]
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 2)
    assert queue.run("SELECT jobherd.cancel_flow(%s), jobherd.cancel_flow(99999)", flow) == [("cancelled", None)]
    assert queue.run("SELECT jobherd.retry_flow(%s)", flow) == [(2,)]
    resolve(queue)
    assert places(queue) == {"a:one": "ready", "a:two": "blocked"}
    run(queue)
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)


def test_a_flow_is_cancelled_after_its_deadline(queue):
    flow = start(queue, {"node": "one", "options": {"delay": "1 day"}}, deadline="1 hour")
    queue.run("UPDATE jobherd.flows SET deadline = now() - interval '1 s'")
    resolve(queue)
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 1)


def test_open_transaction_on_one_flow_does_not_delay_the_deadline_of_another(queue, database):
    held = start(queue, {"node": "one", "options": {"delay": "1 day"}}, deadline="1 hour")
    flow = start(queue, {"node": "one", "options": {"delay": "1 day"}}, deadline="1 hour")
    with psycopg.connect(database) as user:
        queue.run("UPDATE jobherd.flows SET deadline = now() - interval '1 s'")
        user.execute("SELECT jobherd.cancel_flow(%s)", [held])
        queue.run("SET lock_timeout = '1 s'")
        resolve(queue)
        resolve(queue)
        assert state(queue, flow) == ("cancelled", 0, 0, 0, 1)
        assert state(queue, held)[0] == "open"


def test_flow_waits_for_members_that_one_of_its_members_adds(queue):
    flow = start(queue, {"node": "one"}, *CALLBACKS[2:])
    child = queue.child()
    [job] = child.claim(1)
    assert queue.run("SELECT jobherd.extend_flow(%s, %s::jsonb)", flow, json.dumps(
        [{"node": "more", "kind": "a:more"}, {"node": "last", "kind": "a:last", "after": ["more", "one"]}])) == [(2,)]  # fmt: skip
    child.settle(job.token, [job.id], "ok")
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 1, 0, 0)
    run(queue)
    run(queue)
    assert (state(queue, flow)[0], places(queue)["a:tidy"]) == ("completed", "ready")
    with pytest.raises(psycopg.Error, match="has ended"):
        queue.run("SELECT jobherd.extend_flow(%s, '[]')", flow)


def test_new_member_and_the_end_of_the_last_one_are_counted_together(queue):
    """Counting row by row would find no member left in between, and end the flow."""
    flow = start(queue, {"node": "one"}, *CALLBACKS[2:])
    end(queue)
    queue.run("INSERT INTO jobherd.ends (flow, delta) VALUES (%s, 1)", flow)
    resolve(queue)
    assert state(queue, flow)[:2] == ("open", 1)
    assert places(queue)["a:tidy"] == "blocked"


def test_process_skips_a_flow_that_another_process_counts(queue):
    flow = start(queue, {"node": "one"})
    end(queue)
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.flows FOR UPDATE")
        assert queue.run("SELECT jobherd.resolve_flow(%s, 10)", flow) == [(None,)]
        assert queue.count("ends") == 1
    resolve(queue)
    assert state(queue, flow)[0] == "completed"


def test_only_an_open_flow_waits_for_a_member_that_is_run_again_by_hand(queue):
    flow = start(queue, {"node": "one"}, {"node": "two"}, policy="continue")
    job = run(queue, "failed")
    assert queue.retry(job) == "ready"
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 0, 0, 0)
    run(queue)
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)
    assert queue.retry(job) == "ready"
    resolve(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)
    run(queue)
    assert state(queue, flow) == ("completed", 0, 2, 0, 0)


def test_job_can_wait_for_the_end_of_a_flow(queue):
    flow = start(queue, {"node": "one"})
    late = queue.run("SELECT jobherd.enqueue('a:late', '{}', jsonb_build_object('after', %s))", flow)[0][0]
    resolve(queue)
    assert queue.state(late) == "blocked"
    run(queue)
    assert queue.state(late) == "ready"
    later = queue.run(
        "SELECT jobherd.enqueue('a:late', '{}', jsonb_build_object('after', %s, 'when', 'failed'))", flow
    )[0][0]
    resolve(queue)
    assert queue.state(later) == "cancelled"


@pytest.mark.parametrize(
    ("nodes", "options", "words"),
    [
        ("{}", "{}", "array"),
        ("[]", '{"colour": 1}', "unknown option"),
        ("[]", '{"policy": "perhaps"}', "policy"),
        ('[{"kind": "a:b"}]', "{}", 'needs "node"'),
        ('[{"node": "x"}]', "{}", "no kind"),
        ('[{"node": "x", "kind": "a:b"}, {"node": "x", "kind": "a:b"}]', "{}", "two nodes"),
        ('[{"node": "x", "kind": "a:b", "after": ["y"]}, {"node": "y", "kind": "a:b"}]', "{}", "not a node before"),
        ('[{"node": "x", "kind": "a:b", "after": ["x"]}]', "{}", "not a node before"),
        ('[{"node": "x", "kind": "a:b", "after": [12345]}]', "{}", "does not exist"),
        ('[{"node": "x", "kind": "a:b", "on": "monday"}]', "{}", "wrong"),
    ],
)  # fmt: skip
def test_start_flow_rejects_invalid_nodes_and_options_and_enqueues_nothing(queue, nodes, options, words):
    with pytest.raises(psycopg.Error, match=words) as caught:
        queue.run("SELECT jobherd.start_flow('test', %s::jsonb, %s::jsonb)", nodes, options)
    assert caught.value.sqlstate == "22023"
    assert queue.run("SELECT count(*) FROM jobherd.jobs") == [(0,)]


def test_old_flow_is_deleted_with_its_edges_results_and_ends(queue):
    flow = start(queue, *MAP, GROUP, *CALLBACKS)
    queue.run("SELECT jobherd.cancel_flow(%s)", flow)
    resolve(queue)
    queue.run("UPDATE jobherd.flows SET ended_at = now() - interval '31 days'")
    assert queue.run("SELECT jobherd.delete_flows(10)") == [(flow,)]
    assert [queue.count(table) for table in ("flows", "edges", "results", "ends")] == [0, 0, 0, 0]


def test_retry_flow_uses_the_result_of_a_job_that_completed_during_the_cancellation(queue):
    flow = start(
        queue, {"node": "one"}, {"node": "two", "bind": {"n": "one"}}, {"node": "three", "options": {"delay": "1h"}}
    )
    child = queue.child()
    [job] = child.claim(1)
    queue.run("SELECT jobherd.cancel_flow(%s)", flow)
    resolve(queue)
    assert places(queue) == {"a:one": "running", "a:two": "cancelled", "a:three": "cancelled"}
    child.settle(job.token, [job.id], "ok", result="5")
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 1, 0, 2)
    queue.run("SELECT jobherd.retry_flow(%s)", flow)
    resolve(queue)
    assert places(queue)["a:two"] == "ready"
    assert payload(queue, "a:two") == {"n": 5}


def test_extras_of_a_plain_flow_member_start_with_the_prefix_that_workers_recognize(queue):
    start(queue, GROUP)
    [member] = queue.child().claim_raw(1)
    assert member["extras"].startswith(MEMBER)
    start(queue, GROUP, tenant="us")
    jobs = queue.child().claim_raw(9)
    assert [job["extras"].startswith(MEMBER) for job in jobs] == [True, True, False, False, False]


def look_for_vanished(queue, most=100):
    flow = job = None
    while True:
        [(flow, job)] = queue.connection.execute(
            queue.text("maintenance/find_vanished"), {"past_flow": flow, "past_job": job, "most": most}
        ).fetchall()
        if flow is None and job is None:
            return


@pytest.mark.parametrize("table", ["ready", "scheduled", "blocked"])
def test_a_member_that_was_deleted_with_sql_counts_as_cancelled(queue, table):
    waits = {"scheduled": {"options": {"delay": "1h"}}, "blocked": {"after": "other"}}.get(table, {})
    flow = start(queue, {"node": "other"}, {"node": "gone", **waits}, *CALLBACKS[2:], policy="continue")
    other = start(queue, {"node": "lone"})
    queue.run(f"DELETE FROM jobherd.{table} WHERE kind = 'a:gone'")
    look_for_vanished(queue)
    resolve(queue)
    assert state(queue, flow) == ("open", 1, 0, 0, 1)
    run(queue)
    assert state(queue, flow) == ("cancelled", 0, 1, 0, 1)
    assert places(queue)["a:tidy"] == "ready"
    assert state(queue, other) == ("open", 1, 0, 0, 0)


def test_job_that_waits_for_a_job_deleted_with_sql_is_canceled(queue):
    flow = start(queue, {"node": "gone"}, {"node": "two", "after": "gone"}, policy="continue")
    first = queue.enqueue("a:b")
    later = queue.run("SELECT jobherd.enqueue('a:late', '{}', jsonb_build_object('after', %s))", first)[0][0]
    resolve(queue)
    queue.run("DELETE FROM jobherd.ready")
    look_for_vanished(queue, most=1)
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 2)
    assert queue.state(later) == "cancelled"


def test_search_for_vanished_members_finds_none_while_all_exist(queue):
    flow = start(queue, *MAP, GROUP, {"node": "late", "options": {"delay": "1h"}}, *CALLBACKS, policy="continue")
    child = queue.child()

    def looked():
        look_for_vanished(queue, most=1)
        assert queue.run("SELECT count(*) FROM jobherd.ends WHERE state = 'cancelled'") == [(0,)]

    looked()
    [index] = child.claim(1)
    looked()
    child.settle(index.token, [index.id], "ok", result='["x", "y"]')
    looked()
    resolve(queue)
    looked()
    queue.run("SELECT jobherd.extend_flow(%s, %s::jsonb)", flow, json.dumps([{"node": "more", "kind": "a:more"}]))
    looked()
    failed = run(queue, "failed")
    looked()
    queue.retry(failed)
    looked()
    assert state(queue, flow)[0] == "open"


def test_time_to_count_the_ends_of_a_flow_does_not_grow_quadratically(queue):
    """If each row carries the list of all ends, 30,000 ends take a minute, and 1,000 ends 0.1 s."""

    def counted(ends):
        flow = start(queue, {"node": "one"}, policy="continue")
        queue.run("INSERT INTO jobherd.ends (flow, delta) VALUES (%s, %s)", flow, ends)
        queue.run(
            "INSERT INTO jobherd.ends (flow, job, state) SELECT %s, n, 'failed' FROM generate_series(1000000, 999999 + %s) AS n",
            flow, ends,
        )  # fmt: skip
        begun = time.monotonic()
        assert queue.run("SELECT jobherd.resolve_flow(%s, 1000)", flow) == [(ends + 1,)]
        return time.monotonic() - begun

    few = max(counted(1000), 0.05)
    queue.run(f"SET statement_timeout = {round(100_000 * few)}")
    counted(30_000)
