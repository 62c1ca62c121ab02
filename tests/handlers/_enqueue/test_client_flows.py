"""A client cancels, seals and runs flows again."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from jobherd import AsyncClient, Client
from tests.sql.test_after import resolve
from tests.sql.test_flows import places, run, start, state
from tests.support.queue import Queue


def ask(dsn, method, *args, **options):
    with Client(dsn) as client:
        return getattr(client, method)(*args, **options)


def ask_async(dsn, method, *args, **options):
    async def asked():
        async with AsyncClient(dsn) as client:
            return await getattr(client, method)(*args, **options)

    return asyncio.run(asked())


@pytest.mark.parametrize("call", [ask, ask_async])
def test_client_cancels_a_flow_and_runs_it_again_from_its_cancelled_jobs_or_from_a_node(database, call):
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"}, {"node": "parse", "after": ["fetch"]})
        assert call(database, "retry_flow", flow) == 0, "the flow is still running"
        run(queue)
        assert call(database, "cancel_flow", flow, actor="ada", reason="wrong day") == "cancelling"
        resolve(queue)
        assert call(database, "cancel_flow", flow) == "cancelled"
        assert call(database, "retry_flow", flow, actor="eve", reason="right day") == 1
        resolve(queue)
        run(queue)
        assert state(queue, flow) == ("completed", 0, 2, 0, 0)
        assert call(database, "retry_flow", flow) == 0, "the flow is completed"
        assert call(database, "retry_flow", flow, "fetch") == 2
        assert places(queue) == {"a:fetch": "ready", "a:parse": "blocked"}
        assert queue.run("SELECT action, actor, reason FROM jobherd.audit ORDER BY id LIMIT 2") == [
            ("cancel", "ada", "wrong day"),
            ("retry", "eve", "right day"),
        ]


@pytest.mark.parametrize("call", [ask, ask_async])
def test_flow_calls_return_none_for_an_unknown_flow_and_reject_an_unknown_node(database, call):
    assert call(database, "cancel_flow", 99999) is None
    assert call(database, "retry_flow", 99999, "fetch") is None
    assert call(database, "seal_flow", 99999) is None
    with Queue(database) as queue:
        flow = start(queue, {"node": "fetch"})
        run(queue)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="has no job of a node 'fech' that has ended"):
        call(database, "retry_flow", flow, "fech")
    for method in ("cancel_flow", "retry_flow", "seal_flow"):
        with pytest.raises(TypeError, match="a flow's id is a whole number, not a str"):
            call(database, method, "7")


@pytest.mark.parametrize("call", [ask, ask_async])
def test_a_flow_is_sealed(database, call):
    with Queue(database) as queue:
        flow = start(queue, sealed=False)
        resolve(queue)
        assert call(database, "seal_flow", flow) == "sealed"
        resolve(queue)
    assert call(database, "seal_flow", flow) == "completed"
