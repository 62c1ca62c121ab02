"""Chains, groups and graphs in the API for handlers: documents sent, errors and execution."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime

import psycopg
import pytest

from jobherd import AsyncClient, Client, Flow, chain, extend, group, handler
from tests.sql.test_after import end, resolve
from tests.support.queue import Queue


@handler("x:fetch", queue="net")
def fetch(url: str) -> str:
    return url


@handler("x:parse")
def parse(page: str, deep: bool = False) -> list[int]:
    return [len(page), int(deep)]


@handler("x:double")
async def double(n: int) -> int:
    return 2 * n


@handler("x:total")
def total(numbers: list[int], start: int = 0) -> int:
    return sum(numbers, start)


@handler("x:tidy")
def tidy() -> None: ...


@handler("x:pair")
def pair(left: int, right: int) -> None: ...


@handler("x:one", unique=True)
def one(n: int) -> None: ...


@handler("x:dear", cost=lambda payload: {"memory_mb": 1.0})
def dear(n: int) -> None: ...


@handler("x:whole")
def whole(payload: object) -> None: ...


HANDLERS = {each.kind: each for each in (fetch, parse, double, total, tidy, pair)}


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def work(queue):
    """Run the handlers until no job is ready. Return the kinds and results in order."""
    ran = []
    resolve(queue)
    while found := queue.run("SELECT id, kind, payload::text FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1"):
        _, kind, text = found[0]
        result = HANDLERS[kind](**json.loads(text))
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        end(queue, result=json.dumps(result))
        resolve(queue)
        ran.append((kind, result))
    return ran


def test_chain_passes_the_result_of_each_job_to_the_next(queue):
    flow = chain(fetch.call(url="abc"), parse.call(deep=True), total.call(start=10), tidy.call()).enqueue(
        client=Client(connection=queue.connection)
    )
    assert work(queue) == [("x:fetch", "abc"), ("x:parse", [3, 1]), ("x:total", 14), ("x:tidy", None)]
    assert queue.run("SELECT id, name, state FROM jobherd.flows") == [(flow, "chain x:fetch", "completed")]


def test_group_passes_its_results_in_order_to_the_success_callback(queue):
    with psycopg.connect(queue.dsn) as other:
        group(
            [double.call(1), double.options(priority=-1).call(2), double.call(n=3)],
            on_success=total.call(),
            on_failure=tidy.call(),
            name="numbers",
        ).enqueue(connection=other)
        assert queue.count("ready") == 0
    ran = work(queue)
    assert sorted(ran[:3], key=str) == [("x:double", 2), ("x:double", 4), ("x:double", 6)]
    assert ran[3:] == [("x:total", 12)]
    assert queue.run("SELECT payload::text FROM jobherd.history WHERE kind = 'x:total'") == [('{"numbers":[2,4,6]}',)]
    assert queue.run("SELECT name, state FROM jobherd.flows") == [("numbers", "completed")]


def test_graph_passes_results_to_the_nodes_that_use_them(queue):
    flow = Flow("graph")
    page = flow.add(fetch, url="abcd")
    numbers = flow.add(parse, page.result)
    doubled = flow.map(double, over=numbers.result)
    flow.add(total, numbers=doubled.results).after(page).options(priority=3)
    flow.on("done", tidy.call())
    flow.enqueue(client=Client(connection=queue.connection))
    assert work(queue) == [
        ("x:fetch", "abcd"), ("x:parse", [4, 0]), ("x:double", 8), ("x:double", 0), ("x:tidy", None), ("x:total", 8)
    ][:4] + [("x:total", 8), ("x:tidy", None)]  # fmt: skip
    assert queue.run("SELECT priority FROM jobherd.history WHERE kind = 'x:total'") == [(3,)]


def test_nodes_of_one_handler_get_numbered_names():
    flow = Flow("graph")
    assert [flow.add(tidy).name for _ in range(3)] == ["x:tidy", "x:tidy-2", "x:tidy-3"]


def test_async_client_enqueues_a_chain(queue):
    async def start():
        async with AsyncClient(queue.dsn) as client:
            return await chain(fetch.call("a"), tidy.call()).aenqueue(client=client)

    flow = asyncio.run(start())
    assert queue.run("SELECT state FROM jobherd.flows WHERE id = %s", flow) == [("open",)]


def test_group_sends_jobs_of_one_kind_as_one_node():
    nodes = group(fetch.call(str(n)) for n in range(4)).nodes()
    assert [(node["node"], len(node["payloads"])) for node in nodes] == [("x:fetch", 4)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: chain(fetch.call(), tidy.call()), "x:fetch.* needs|needs 'url'"),
        (lambda: chain(fetch.call("a"), pair.call()), "leaves out 'left', 'right'"),
        (lambda: chain(fetch.call("a", "b")), "takes 1 arguments"),
        (lambda: chain(fetch.call("a", url="b")), "twice"),
        (lambda: chain(fetch.call(url=7)), "payload at"),
        (lambda: chain(fetch.call(link="a")), "no parameter 'link'"),
        (lambda: group([one.call(1)]).nodes(), "unique"),
        (lambda: group([dear.call(1)]).nodes(), "cost"),
        (lambda: chain(fetch.call("a"), whole.call()), "whole payload"),
        (lambda: group([fetch.options(tenant="us").call("a")]).nodes(), "option tenant"),
        (lambda: Flow(""), "1 to 200"),
        (lambda: Flow("a", on_failure="perhaps"), "on_failure"),
        (lambda: Flow("a", deadline="soon"), "deadline"),
        (lambda: Flow("a", version=0), "version"),
        (lambda: Flow("a", unique_key=""), "unique_key must be a text of 1 to 200"),
        (lambda: Flow("a").on("monday", tidy.call()), "when is"),
        (lambda: Flow("a").map(tidy, over=Flow("b").add(parse, page="x").result), "required parameter"),
        (lambda: Flow("a").map(double, over=[1, 2]), "node.result"),
        (lambda: Flow("a").add(parse, Flow("b").add(fetch, "x").result), "another flow"),
        (lambda: Flow("a").add(tidy).after("b"), "after"),
        (lambda: Flow("a").add(tidy).after(1, when="perhaps"), "when"),
        (lambda: Flow("a").add(tidy).after(1.5), "node 'x:tidy': each id in after is a whole number, not a float"),
        (lambda: Flow("a").add(tidy).options(priority="soon"), "node 'x:tidy': priority must be a whole number"),
        (lambda: Flow("a").add(tidy).options(priority=40000), "node 'x:tidy': priority must be a whole number"),
        (lambda: Flow("a").add(tidy).options(queue="No Name"), "node 'x:tidy': queue"),
        (lambda: Flow("a").add(tidy).options(max_attempts=0), "node 'x:tidy': max_attempts must be"),
        (lambda: Flow("a").add(tidy).options(delay="1h", run_at=None, tenant="us"), "node 'x:tidy': .*option tenant"),
        (lambda: Flow("a").add(tidy).options(after=1), "node 'x:tidy': .*option after"),
        (lambda: Flow("a").add(tidy).options(unique=True), "node 'x:tidy': .*is unique"),
        (lambda: Flow("a").add(tidy).options(colour=1), "node 'x:tidy': unknown option 'colour'"),
        (lambda: Flow("a").add(fetch, 7), "node 'x:fetch': .*payload at"),
        (lambda: Flow("a").add(tidy).after(Flow("b").add(tidy)), "node 'x:tidy': after names node 'x:tidy', which"),
    ],
)
def test_invalid_flow_definition_is_rejected_at_the_call(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: chain(fetch), "chain: item 1 is the handler 'x:fetch', not a call: write fetch.call(...)"),
        (
            lambda: group([tidy.call(), double.options(priority=1)]),
            "group: item 2 is the handler 'x:double', not a call: write double.call(...)",
        ),
        (
            lambda: chain(tidy.call(), group([tidy.call()])),
            "chain: item 2 is a Group, not a call: chains and groups cannot be nested, so add the jobs to a Flow",
        ),
        (lambda: group([chain(tidy.call())]), "group: item 1 is a Chain, not a call: chains and groups cannot"),
        (lambda: chain([tidy.call()]), "chain: item 1 is a list, not a call: give each call as a separate argument"),
        (lambda: chain("x:fetch"), "chain: item 1 is a str, not a call: write handler.call(...)"),
        (lambda: group(tidy.call()), "group takes a list of calls, not a Call: put it into a list"),
        (lambda: group(tidy), "group takes a list of calls, not the handler 'x:tidy'"),
        (
            lambda: group([], on_success=tidy),
            "group: on_success is the handler 'x:tidy', not a call: write tidy.call(...)",
        ),
        (lambda: extend(1, [tidy]), "extend: item 1 is the handler 'x:tidy'"),
        (lambda: Flow("a").add("x:fetch", url="x"), "Flow.add takes a handler, not a str: give the decorated function"),
        (lambda: Flow("a").add(tidy.call()), "Flow.add takes a handler, not a Call: use put(call)"),
        (lambda: Flow("a").map("x:fetch", over=[]), "Flow.map takes a handler, not a str"),
        (lambda: Flow("a").put(tidy), "Flow.put: the argument is the handler 'x:tidy', not a call: write tidy.call"),
        (lambda: Flow("a").on("done", tidy), "Flow.on: the job is the handler 'x:tidy', not a call: write tidy.call"),
    ],
)
def test_value_that_is_not_a_call_is_rejected_with_what_to_write(make, says):
    with pytest.raises(TypeError, match=re.escape(says)):
        make()


def test_node_cannot_run_after_itself_or_a_node_added_later():
    flow = Flow("a")
    first, second = flow.add(tidy), flow.add(tidy)
    with pytest.raises(ValueError, match=r"node 'x:tidy': after names node 'x:tidy-2', which was added later"):
        first.after(second)
    with pytest.raises(ValueError, match="added later"):
        first.after(first)
    assert [node.get("after") for node in (first.document(), second.after(first).document())] == [None, ["x:tidy"]]


def test_named_node_is_referenced_by_its_new_name(queue):
    flow = Flow("a")
    first = flow.add(fetch, "a")
    last = flow.add(parse, page=first.result).after(first).named("read it")
    assert first.named("get it") is first
    assert flow.add(fetch, "b").name == "x:fetch"
    sent = last.document()
    assert (sent["node"], sent["kind"], sent["bind"], sent["after"]) == (
        "read it",
        "x:parse",
        {"page": "get it"},
        ["get it"],
    )
    flow.enqueue(client=Client(connection=queue.connection))
    assert queue.run("SELECT n ->> 'node' FROM jobherd.flows, jsonb_array_elements(nodes) AS n") == [
        ("get it",), ("read it",), ("x:fetch",)
    ]  # fmt: skip
    for wrong in ("", "a" * 101, "a\n", 7, "read it"):
        with pytest.raises(ValueError, match="name must be|a node 'read it' already"):
            first.named(wrong)


def test_run_at_replaces_an_earlier_delay_option():
    node = Flow("a").add(tidy.options(delay="1h")).options(run_at=datetime(2030, 1, 1, tzinfo=UTC))
    sent = node.document()["options"]
    assert (sent.get("delay"), sent["run_at"]) == (None, "2030-01-01T00:00:00+00:00")


def test_extend_adds_jobs_to_a_running_flow_and_fails_for_a_finished_one(queue):
    client = Client(connection=queue.connection)
    flow = group([double.call(1)], on_done=tidy.call()).enqueue(client=client)
    assert extend(flow, [double.call(5), fetch.call("a")], client=client) == 2
    assert sorted(kind for kind, _ in work(queue)) == ["x:double", "x:double", "x:fetch", "x:tidy"]
    with pytest.raises(psycopg.Error, match="has ended"):
        extend(flow, [double.call(5)], client=client)


def test_unsealed_flow_accepts_jobs_until_it_is_sealed(queue):
    client = Client(connection=queue.connection)
    flow = Flow("open", sealed=False)
    flow.on("done", tidy.call())
    number = flow.enqueue(client=client)
    assert work(queue) == []
    assert extend(number, [double.call(5)], client=client) == 1
    assert work(queue) == [("x:double", 10)]
    assert client.seal_flow(number) == "sealed"
    assert work(queue) == [("x:tidy", None)]


def test_flow_with_the_same_unique_key_is_enqueued_once(queue):
    client = Client(connection=queue.connection)
    flows = [Flow("daily", version=2, unique_key="monday") for _ in range(2)]
    for flow in flows:
        flow.add(tidy)
    first, second = (flow.enqueue(client=client) for flow in flows)
    assert first == second
    assert queue.run("SELECT version, pending FROM jobherd.flows") == [(2, 1)]
