"""`flows` and `flow`: the list, the tree, and the actions."""

from __future__ import annotations

import json

from tests.cli.shell import jobherd
from tests.sql.test_after import end, resolve
from tests.sql.test_flows import start
from tests.support.queue import Queue


def test_a_flow_is_listed_shown_cancelled_and_run_again(database):
    assert jobherd("flows", dsn=database).err == "jobherd: no flow found\n"
    with Queue(database) as queue:
        flow = start(
            queue, {"node": "index"}, {"node": "page", "bind": {"url": "index"}, "map": "url"}, {"node": "sum", "bind": {"n": "page"}},
            {"node": "tidy", "on": "done"},
        )  # fmt: skip
        end(queue, result='["x", "y"]')
        resolve(queue)
        heading, line = jobherd("flows", dsn=database).out.splitlines()
        assert heading.split() == ["FLOW", "NAME", "STATE", "LEFT", "DONE", "FAILED", "DURATION"]
        assert line.split()[:4] == [str(flow), "test", "open", "2"]
        tree = jobherd("flow", "tree", flow, dsn=database).out
        assert "2 left, 1 completed, 0 failed, 0 cancelled" in tree
        lines = {line.split()[0]: line for line in tree.splitlines()[3:]}
        assert "completed" in lines["index"]
        assert "2 ready" in lines["page"]
        assert "blocked" in lines["sum"]
        assert "page" in lines["sum"][5:]
        assert "the flow (done)" in lines["tidy"]
        shown = json.loads(jobherd("flow", "tree", flow, "--json", dsn=database).out)
        assert [node["states"] for node in shown["nodes"]] == [
            {"completed": 1},
            {"ready": 2},
            {"blocked": 1},
            {"blocked": 1},
        ]
        assert jobherd("flow", "retry", flow, dsn=database).code == 1
        assert (
            jobherd("flow", "cancel", flow, "--reason", "test", dsn=database).out == f"flow {flow} is being canceled\n"
        )
        resolve(queue)
        assert json.loads(jobherd("flows", "--state", "cancelled", "--json", dsn=database).out)[0]["id"] == flow
        assert jobherd("flow", "cancel", flow, dsn=database).code == 1
        assert jobherd("flow", "retry", flow, dsn=database).out == f"flow {flow} runs again: 3 jobs\n"
        assert queue.run("SELECT action, reason FROM jobherd.audit WHERE target ? 'flow' ORDER BY id LIMIT 1") == [
            ("cancel", "test")
        ]
    for action in ("tree", "cancel", "retry", "seal"):
        answer = jobherd("flow", action, 99999, dsn=database)
        assert (answer.code, answer.err) == (1, "jobherd: flow 99999 not found\n")


def test_the_tree_names_the_class_of_an_error_without_a_code(database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]}, policy="continue")
        end(queue, "failed", code="UNHANDLED_ERROR", error="KeyError: 'x'")
        resolve(queue)
    lines = {line.split()[0]: line.split() for line in jobherd("flow", "tree", flow, dsn=database).out.splitlines()[3:]}
    assert lines["fetch"][-2:] == ["failed", "KeyError"]
    assert lines["parse"][-1] == "UPSTREAM_FAILED"


def test_a_flow_is_run_again_from_a_node(database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]})
        answer = jobherd("flow", "retry", flow, "--from", "parse", dsn=database)
        assert (answer.code, answer.err) == (1, f"jobherd: flow {flow} is open: cancel it first, or wait for its end\n")
        for _ in range(2):
            end(queue)
            resolve(queue)
        answer = jobherd("flow", "retry", flow, "--from", "parze", dsn=database)
        assert (answer.code, answer.err) == (
            2, f"jobherd: flow {flow} has no job of a node 'parze' that has ended. Nodes: fetch, parse\n"
        )  # fmt: skip
        assert (
            jobherd("flow", "retry", flow, "--from", "parse", dsn=database).out == f"flow {flow} runs again: 1 jobs\n"
        )
        assert queue.run("SELECT kind FROM jobherd.ready") == [("a:parse",)]
    answer = jobherd("flow", "cancel", flow, "--from", "parse", dsn=database)
    assert (answer.code, answer.err) == (2, "jobherd: --from requires retry\n")


def test_a_flow_is_sealed(database):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, sealed=False, version=3, unique_key="monday")
        assert "\nversion 3, unique key monday\n" in jobherd("flow", "tree", flow, dsn=database).out
        assert (
            f"not sealed: programs can add jobs until `jobherd flow seal {flow}`"
            in jobherd("flow", "tree", flow, dsn=database).out
        )
        assert (
            jobherd("flow", "seal", flow, dsn=database).out
            == f"flow {flow} is sealed: it ends when its jobs have ended\n"
        )
        end(queue)
        resolve(queue)
    answer = jobherd("flow", "seal", flow, dsn=database)
    assert (answer.code, answer.err) == (1, f"jobherd: flow {flow} is completed already\n")
