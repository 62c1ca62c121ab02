"""`job.input` and `job.inputs`: a handler reads the results of the nodes that its own node waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobherd import InputError, Job, handler
from jobherd.handlers._values import keys
from jobherd.testing import run_payload
from tests.support.seats import ACTING, Bench

if TYPE_CHECKING:
    from tests.support.seats import Child

INPUTTING = str(Path(__file__).parents[1] / "inputting.py")
OVER = ("completed", "failed", "cancelled")
MAPPED = (
    {"node": "index", "kind": "input:index", "payload": {"items": [7, 8, 9]}},
    {"node": "page", "kind": "input:page", "bind": {"item": "index"}, "map": "item"},
)


def start(bench: Bench) -> Child:
    child = bench.start(handlers=(ACTING, INPUTTING), served=("default",))
    child.wait_idle()
    return child


def begin(bench: Bench, *nodes: dict[str, Any], **options: Any) -> int:
    given = {"nodes": json.dumps(nodes), "options": json.dumps(options)}
    return bench.ask("SELECT jobherd.start_flow('f', %(nodes)s::jsonb, %(options)s::jsonb) AS id", **given)[0]["id"]


def work(bench: Bench, child: Child) -> None:
    """Run all jobs and resolve their flows until no job is left."""
    while True:
        for row in bench.ask("SELECT id FROM jobherd.jobs WHERE state IN ('ready', 'running') ORDER BY id"):
            child.nudge()
            bench.wait(row["id"], *OVER)
        while True:
            bench.ask("SELECT jobherd.mark_upstreams(NULL, 1000)")
            [flows] = bench.ask("SELECT jobherd.resolve_flows(1000) AS rows")
            [ends] = bench.ask("SELECT ended FROM jobherd.resolve_ends(1000)")
            if not flows["rows"] and not ends["ended"]:
                break
        if not bench.ask("SELECT FROM jobherd.jobs WHERE state IN ('ready', 'running')"):
            return


def run_index(bench: Bench, child: Child) -> int:
    """Run only the first job and return its id once the worker is idle. Otherwise it would claim the next jobs too."""
    [index] = bench.ask("SELECT id FROM jobherd.jobs WHERE kind = 'input:index'")
    child.nudge()
    bench.wait(index["id"], *OVER)
    child.wait_heard()
    child.wait_idle()
    return index["id"]


def result(bench: Bench, kind: str = "input:total") -> Any:
    [row] = bench.ask("SELECT state, result, error FROM jobherd.jobs WHERE kind = %(kind)s", kind=kind)
    assert row["state"] == "completed", row
    return row["result"]


def total(*nodes: str, how: str = "", **fields: Any) -> dict[str, Any]:
    return {"node": "total", "kind": "input:total", "payload": {"nodes": nodes, "how": how}, **fields}


def test_handler_reads_the_results_of_the_nodes_before_it(bench: Bench):
    begin(bench, *MAPPED, total("index", "*page", after=["page", "index"]))
    work(bench, start(bench))
    assert result(bench) == [[7, 8, 9], [[7, 3], [8, 3], [9, 3]]]


def test_result_passed_as_an_argument_can_be_read_after_its_job_was_deleted(bench: Bench):
    begin(bench, *MAPPED, {"node": "page2", "kind": "input:page", "bind": {"item": "index"}, "map": "item"})
    child = start(bench)
    run_index(bench, child)
    while not bench.ask("SELECT FROM jobherd.ready"):
        bench.ask("SELECT jobherd.resolve_flows(1000), jobherd.resolve_ends(1000)")
    bench.ask("DELETE FROM jobherd.history")
    work(bench, child)
    rows = bench.ask("SELECT result FROM jobherd.jobs WHERE kind = 'input:page' ORDER BY id")
    assert [row["result"] for row in rows] == [[7, 3], [8, 3], [9, 3]] * 2


def test_job_that_runs_after_the_flow_reads_any_of_its_nodes(bench: Bench):
    begin(bench, *MAPPED, total("index", "*page", on="success"))
    work(bench, start(bench))
    assert result(bench) == [[7, 8, 9], [[7, 3], [8, 3], [9, 3]]]


def test_node_added_to_a_running_flow_is_read_by_its_name(bench: Bench):
    flow = begin(bench, {"node": "first", "kind": "input:nothing"})
    index, pages = MAPPED
    more = [index | {"node": "more"}, pages | {"node": "pages", "bind": {"item": "more"}, "kind": "input:index"}]
    more[1] |= {"bind": {"items": "more"}, "map": "items"}
    more[0] |= {"payload": {"items": [[1], []]}}
    more.append(total("more", "*pages", after=["more", "pages"]))
    bench.ask("SELECT jobherd.extend_flow(%(flow)s, %(more)s::jsonb)", flow=flow, more=json.dumps(more))
    work(bench, start(bench))
    assert result(bench) == [[[1], []], [[1], []]]


def test_many_results_are_read_page_by_page_and_missing_items_are_left_out(bench: Bench):
    begin(
        bench,
        {"node": "index", "kind": "input:index", "payload": {"items": []}},
        {"node": "page", "kind": "input:page", "bind": {"item": "index"}, "map": "item"},
        total("*page", after=["page"]),
    )
    child = start(bench)
    run_index(bench, child)
    while not bench.ask("SELECT FROM jobherd.jobs WHERE kind = 'input:total' AND state = 'ready'"):
        bench.ask("SELECT jobherd.resolve_flows(1000), jobherd.resolve_ends(1000)")
    bench.ask(
        "INSERT INTO jobherd.results (flow, item, result) SELECT f.id, i * 2, to_json(ARRAY[i]) FROM jobherd.flows f,"
        " generate_series(0, 2499) AS i WHERE f.outer_flow IS NOT NULL"
    )
    work(bench, child)
    assert result(bench) == [[[i] for i in range(2500)]]


def test_large_results_are_read_a_few_at_a_time(bench: Bench):
    bench.ask(
        "INSERT INTO jobherd.results (flow, item, result)"
        " SELECT 1, i, CASE i WHEN 3 THEN NULL ELSE to_json(repeat('x', CASE i WHEN 1 THEN 4500000 ELSE 2500000 END)) END"
        " FROM generate_series(0, 4) AS i"
    )
    text = (Path(__file__).parents[3] / "sql/queries/steps/list_inputs.sql").read_text()
    pages, past = [], -1
    while found := [row["item"] for row in bench.ask(text, flow=1, past=past)]:
        pages.append(found)
        past = found[-1]
    assert pages == [[0], [1], [2, 3], [4]]


def test_missing_input_raises_an_error_with_the_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBHERD_KEYS", f"one={'A' * 43}=")
    keys.ring.cache_clear()
    try:
        child = start(bench)
    finally:
        keys.ring.cache_clear()
    begin(
        bench,
        *MAPPED,
        {"node": "bad", "kind": "input:index", "payload": {"items": [], "fails": True}, "options": {"max_attempts": 1}},
        {"node": "none", "kind": "input:nothing"},
        {"node": "other", "kind": "input:nothing"},
        {"node": "last", "kind": "input:nothing", "after": ["other"]},
        {"node": "sealed", "kind": "input:sealed"},
        total(
            "other", "page", "*index", "bad", "*bad", "none", "sealed",
            after=["index", "page", "bad", "none", "sealed"], when="ended",
        ),
        policy="continue",
    )  # fmt: skip
    work(bench, child)
    [total_job] = bench.ask("SELECT id FROM jobherd.jobs WHERE kind = 'input:total'")
    [bad] = bench.ask("SELECT id FROM jobherd.jobs WHERE kind = 'input:index' AND state = 'failed'")
    assert result(bench) == [
        f"job {total_job['id']} did not wait for node 'other'. Nodes that it waited for: 'bad', 'index', 'none', 'page', 'sealed'",
        "node 'page' has one job for each item of a list: use `job.inputs('page')`",
        "node 'index' has one job: use `job.input('index')`",
        f"node 'bad' has no result: job {bad['id']} is failed",
        "node 'bad' has one job: use `job.input('bad')`",
        None,
        "the result of node 'sealed' is encrypted: results of an encrypted kind cannot be passed on",
    ]


def test_deleted_result_raises_an_error_and_is_not_read_as_empty(bench: Bench):
    begin(bench, {"node": "index", "kind": "input:index", "payload": {"items": []}}, total("index", after=["index"]))
    child = start(bench)
    index = run_index(bench, child)
    while not bench.ask("SELECT FROM jobherd.ready"):
        bench.ask("SELECT jobherd.resolve_flows(1000), jobherd.resolve_ends(1000)")
    bench.ask("DELETE FROM jobherd.history")
    work(bench, child)
    [said] = result(bench)
    assert said.startswith(f"the result of node 'index' is not stored any more: job {index} was deleted")


@pytest.mark.parametrize(
    ("how", "says"), [("transaction", "inside a transaction of the job"), ("thread", "the session serves one thread")]
)
def test_reading_a_result_in_a_transaction_or_another_thread_raises_an_error(bench: Bench, how: str, says: str):
    begin(bench, MAPPED[0], total("index", how=how, after=["index"]))
    work(bench, start(bench))
    assert says in result(bench)[0]


def test_result_of_another_type_fails_the_attempt_with_the_reason(bench: Bench):
    begin(bench, MAPPED[0], total("index", how="typed", after=["index"], options={"max_attempts": 1}))
    work(bench, start(bench))
    [row] = bench.ask("SELECT state, error FROM jobherd.jobs WHERE kind = 'input:total'")
    assert row["state"] == "failed"
    assert "the result of node 'index' is not dict[str, int]: " in row["error"]


def test_input_works_in_a_coroutine_and_fails_outside_a_flow_and_in_a_batch(bench: Bench):
    child = start(bench)
    alone = bench.enqueue("input:total", nodes=["index"])
    many = bench.enqueue("input:batch")
    begin(bench, MAPPED[0], {"node": "after", "kind": "input:coroutine", "after": ["index"]})
    work(bench, child)
    assert bench.job(alone)["result"] == [f"job {alone} did not wait for node 'index'. Nodes that it waited for: none"]
    assert "declare the handler without batch=N" in bench.job(many)["result"]
    assert result(bench, "input:coroutine") == [7, 8, 9]


def test_run_payload_takes_the_results_of_nodes_as_inputs():
    @handler("input:test")
    def tested(job: Job) -> object:
        return [job.input("index", returns=tuple[int, ...]), list(job.inputs("page"))]

    ran = run_payload(tested, {}, inputs={"index": [1, 2], "page": [{"a": 1}, None]})
    assert ran.result == [[1, 2], [{"a": 1}, None]]
    for inputs, says in (
        ({}, "did not wait for node 'index'. Nodes that it waited for: none"),
        ({"index": ["a"]}, "the result of node 'index' is not tuple[int, ...]"),
        ({"index": [1], "page": 7}, "inputs['page'] must be a list"),
    ):
        ran = run_payload(tested, {}, inputs=inputs)
        assert isinstance(ran.exception, InputError)
        assert says in str(ran.exception)
