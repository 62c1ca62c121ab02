"""Tests that a client that is not admitted cannot make the gateway parse or receive large requests."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.apart import apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EMPTY = b"\x0a\x00"
"""An empty message as field 1. It has two bytes, and more than a hundred once it is parsed."""
EMPTY_KIND = b"\x2a\x00"
"""The same as field 5 of a Hello."""
LARGE = EMPTY * (4 << 20)
MOST_GROWTH = 150 << 10
"""In KiB. The requests of these tests would take at least 600,000 if they were parsed."""


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Door:
    """Admits every client, or none."""

    def __init__(self, *, opens: bool) -> None:
        self.opens = opens

    async def admit(self, context: Any, **_: object) -> Any:
        import grpc

        if not self.opens:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not admitted")
        return SimpleNamespace(name="p")


def producing(door: Any) -> Any:
    from jobherd.handlers._remote import messages as m
    from jobherd.handlers._remote.schema import PRODUCER
    from jobherd.workers.gateway.access import Role
    from jobherd.workers.gateway.admission import admitting_handler

    async def enqueue(request: Any, principal: Any, _context: object) -> Any:
        return m.EnqueueResponse(ids=[len(request.jobs), len(principal.name)])

    async def stream(requests: AsyncIterator[Any], _principal: object, context: Any) -> None:
        async for request in requests:
            await context.write(m.EnqueueStreamResponse(number=request.number))

    async def other(*_: object) -> None:
        raise AssertionError("it is not called")

    functions = {"Enqueue": enqueue, "EnqueueStream": stream, "GetJob": other, "CancelJob": other}
    return admitting_handler(PRODUCER, functions, door, Role.ENQUEUE)


async def refused(call: Any) -> tuple[str, str]:
    import grpc

    try:
        await call
    except grpc.aio.AioRpcError as problem:
        return problem.code().name, str(problem.details())
    raise AssertionError("the call was answered")


@apart
async def test_request_of_a_rejected_client_is_not_parsed(_folder):
    from tests.workers.gateway.calls import calling, serving

    async with serving(producing(Door(opens=False))) as where, calling(where) as channel:
        before = peak()
        for method in ("Enqueue", "EnqueueStream"):
            call = channel.unary_unary(f"/jobherd.worker.v1.ProducerService/{method}")
            assert await refused(call(LARGE)) == ("UNAUTHENTICATED", "not admitted")
        assert peak() - before < MOST_GROWTH


@apart
async def test_calls_of_admitted_clients_get_their_requests(_folder):
    import grpc

    from jobherd.handlers._remote import messages as m
    from jobherd.handlers._remote.grpc_methods import client_call
    from jobherd.handlers._remote.schema import PRODUCER
    from tests.workers.gateway.calls import calling, serving

    invalid = ("INVALID_ARGUMENT", "a message is not one of this protocol")
    async with serving(producing(Door(opens=True))) as where, calling(where) as channel:
        answer = await client_call(channel, PRODUCER.methods["Enqueue"])(m.EnqueueRequest(jobs=[m.NewJob()] * 3))
        assert list(answer.ids) == [3, 1]
        stream = client_call(channel, PRODUCER.methods["EnqueueStream"])()
        for number in (1, 2):
            await stream.write(m.EnqueueStreamRequest(number=number))
            assert (await stream.read()).number == number
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        for method in ("Enqueue", "EnqueueStream"):
            path = f"/jobherd.worker.v1.ProducerService/{method}"
            assert await refused(channel.unary_unary(path)(b"\xff\xff")) == invalid
        none = channel.stream_unary("/jobherd.worker.v1.ProducerService/Enqueue")()
        await none.done_writing()
        assert await refused(none) == ("INVALID_ARGUMENT", "the call has no request")


@apart
async def test_hello_is_not_parsed_before_its_token_is_admitted(_folder):
    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.admission import token_in_hello
    from tests.workers.gateway.calls import calling
    from tests.workers.gateway.test_worker_service import service

    hello = m.Hello(token="wrong")
    # After a known field, so that its length needs as many bytes as that of the whole.
    large = hello.SerializeToString() + EMPTY_KIND * ((4 << 20) - 100)
    data = b"\x0a" + varint(len(large)) + large
    async with service(admits=Door(opens=False)) as (where, coordinator, _), calling(where) as channel:
        before = peak()
        assert token_in_hello(data) == "wrong"
        call = channel.stream_stream("/jobherd.worker.v1.WorkerService/Work")()
        await call.write(data)
        assert (await call.code()).name == "UNAUTHENTICATED"
        assert peak() - before < MOST_GROWTH
        assert not coordinator.state.sessions


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


@apart
async def test_token_of_a_hello_is_read_without_parsing_the_other_fields(_folder):
    import pytest
    from google.protobuf.message import DecodeError

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.admission import token_in_hello

    hello = m.Hello(token="t", worker_id="w", held=[m.TaskRef(task_id=1, claim=2)])
    assert token_in_hello(m.WorkRequest(hello=hello).SerializeToString()) == "t"
    assert token_in_hello(m.WorkRequest(hello=m.Hello()).SerializeToString()) == ""
    assert token_in_hello(m.WorkRequest(ready=m.Ready(number=1)).SerializeToString()) is None
    assert token_in_hello(b"") is None
    with pytest.raises(DecodeError):
        token_in_hello(b"\xff")
