"""Tests a stream at the worker service: how long it may be silent, and how often its client is checked."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.apart import apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def service(*, admits: Any = None, **limits: float) -> AsyncIterator[tuple[str, Any, Any]]:
    """Run a server whose database never answers. Yield the address, the coordinator and the checked tokens."""
    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.coordinator import Coordinator
    from jobherd.workers.gateway.state import Limits
    from jobherd.workers.gateway.worker_service import WorkerService
    from tests.workers.gateway.calls import serving

    checked: list[str] = []
    came = asyncio.Event()

    class Everyone:
        async def admit(self, _context: object, *, token: str, **_role: object) -> Principal:
            checked.append(token)
            came.set()
            return Principal("p")

    spec: Any = SimpleNamespace(
        supervisor=1,
        control=SimpleNamespace(gates=0),
        board=SimpleNamespace(
            tally=None,
            remote=SimpleNamespace(count=lambda *_: None, observe=lambda *_: None),
            say_streams=lambda *_: None,
        ),
        report=-1,
        settings=SimpleNamespace(lease=15.0, host="h"),
    )
    database: Any = SimpleNamespace(session=None)
    coordinator = Coordinator(spec, database, Limits(**limits))
    everyone: Any = admits or Everyone()
    async with serving(WorkerService(coordinator, everyone).handler()) as where:
        yield where, coordinator, SimpleNamespace(tokens=checked, came=came)


def call(channel: Any) -> Any:
    from jobherd.handlers._remote.grpc_methods import client_call
    from jobherd.handlers._remote.schema import WORKER

    return client_call(channel, WORKER.methods["Work"])()


@apart
async def test_stream_without_hello_ends(_folder: Path) -> None:
    from tests.workers.gateway.calls import calling

    async with service(hello=0.05) as (where, coordinator, _), calling(where) as channel:
        stream = call(channel)
        assert (await stream.code()).name == "DEADLINE_EXCEEDED"
        assert not coordinator.state.streams


@pytest.mark.promise("D5")
@apart
async def test_token_is_checked_once_per_stream(_folder: Path) -> None:
    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway import sessions
    from jobherd.workers.gateway.actions import Opened
    from tests.workers.gateway.calls import calling

    async with service() as (where, coordinator, checked), calling(where) as channel:
        stream = call(channel)
        await stream.write(m.WorkRequest(hello=m.Hello(token="one")))
        await checked.came.wait()
        coordinator.carry_out(sessions.on_opened(coordinator.state, 1, Opened(7, 8, 1, {}), 1e9, 1e9))
        assert (await stream.read()).hello_ack.session == "7"
        for number in range(1, 51):
            await stream.write(m.WorkRequest(ready=m.Ready(number=number)))
            await stream.write(m.WorkRequest(heartbeat=m.Heartbeat(number=number)))
            assert (await stream.read()).heartbeat_ack.number == number
        assert checked.tokens == ["one"], "the token is checked once per stream, not for each claim"
        stream.cancel()
