"""Tests which requests of an EnqueueStream are enqueued together, and how many may wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway import enqueue_stream, request_memory
from jobherd.workers.gateway.enqueue_stream import Arrivals
from jobherd.workers.gateway.request_memory import RequestMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


def request(number: int, *, jobs: int = 1, key: str = "", size: int = 0) -> m.EnqueueStreamRequest:
    payload = b" " * size
    return m.EnqueueStreamRequest(number=number, jobs=[m.NewJob(payload=payload)] * jobs, idempotency_key=key)


class Stream:
    """The requests that a client has sent. `read` counts those that were read."""

    def __init__(self, requests: Iterable[m.EnqueueStreamRequest], error: Exception | None = None) -> None:
        self.read = 0
        self._requests, self._error = requests, error

    async def __aiter__(self) -> AsyncIterator[m.EnqueueStreamRequest]:
        for one in self._requests:
            self.read += 1
            yield one
        if self._error is not None:
            raise self._error


async def rounds(arrivals: Arrivals) -> list[list[int]]:
    found = []
    while taken := await arrivals.take():
        found.append([one.number for one in taken])
    return found


def taken(*requests: m.EnqueueStreamRequest) -> list[list[int]]:
    """Return the request numbers of each transaction. All requests arrive before the first transaction."""

    async def run() -> list[list[int]]:
        arrivals = Arrivals(RequestMemory())
        await arrivals.read(Stream(requests))
        return await rounds(arrivals)

    return asyncio.run(run())


def test_waiting_requests_share_a_transaction_up_to_its_job_limit():
    assert taken() == []
    assert taken(*map(request, range(1, 6))) == [[1, 2, 3, 4, 5]]
    large = [request(1, jobs=6000), request(2, jobs=4000), request(3), request(4, jobs=20_000), request(5)]
    assert taken(*large) == [[1, 2], [3], [4], [5]]


def test_request_with_a_key_that_is_already_waiting_goes_into_a_later_transaction():
    requests = [request(1, key="a"), request(2), request(3), request(4, key="b"), request(5, key="a"), request(6)]
    assert taken(*requests) == [[1, 2, 3, 4], [5, 6]]


@pytest.mark.parametrize("size", [0, 2 << 20])
def test_reading_stops_while_too_many_requests_or_bytes_wait(monkeypatch, size: int):
    monkeypatch.setattr(enqueue_stream, "MOST_REQUESTS", 4)

    async def run() -> None:
        arrivals, stream = Arrivals(RequestMemory()), Stream([request(number, size=size) for number in range(1, 20)])
        reader = asyncio.create_task(arrivals.read(stream))
        for step in range(1, 5):
            await asyncio.sleep(0)
            assert stream.read == 4 * step
            await arrivals.take()
        assert [number for each in await rounds(arrivals) for number in each] == [17, 18, 19]
        await reader

    asyncio.run(run())


def test_requests_that_arrived_before_an_error_are_taken_first():
    async def run() -> None:
        arrivals = Arrivals(RequestMemory())
        reader = asyncio.create_task(arrivals.read(Stream([request(1), request(2)], ValueError("no message"))))
        assert [number for each in await rounds(arrivals) for number in each] == [1, 2]
        with pytest.raises(ValueError, match="no message"):
            await reader

    asyncio.run(run())


SIZE = 100_000


def large(count: int) -> Stream:
    return Stream([request(number, size=SIZE) for number in range(1, count + 1)])


def test_memory_of_all_streams_together_is_bounded(monkeypatch):
    monkeypatch.setattr(request_memory, "MOST_BYTES", 10 * SIZE)

    async def run() -> None:
        memory = RequestMemory()
        pairs = [(Arrivals(memory), large(20)) for _ in range(8)]
        readers = [asyncio.create_task(arrivals.read(stream)) for arrivals, stream in pairs]
        for _ in range(50):
            await asyncio.sleep(0)
        assert sum(stream.read for _, stream in pairs) < 10 + len(pairs), (
            "once the memory is full, each stream reads at most one more request"
        )
        found = await asyncio.gather(*(rounds(arrivals) for arrivals, _ in pairs))
        assert [[number for each in one for number in each] for one in found] == [[*range(1, 21)]] * len(pairs)
        await asyncio.gather(*readers)
        assert not memory.is_full

    asyncio.run(run())


def test_stream_continues_one_request_at_a_time_while_another_stream_fills_the_memory(monkeypatch):
    monkeypatch.setattr(request_memory, "MOST_BYTES", 3 * SIZE)

    async def run() -> None:
        memory = RequestMemory()
        stuck, stream = Arrivals(memory), large(20)
        filling = asyncio.create_task(stuck.read(large(3)))
        await stuck.take()  # the client of this stream reads no answers
        assert memory.is_full
        arrivals = Arrivals(memory)
        reader = asyncio.create_task(arrivals.read(stream))
        for number in range(1, 6):
            assert [one.number for one in await arrivals.take()] == [number]
            await asyncio.sleep(0)
            assert stream.read == number
        stuck.close()
        await asyncio.sleep(0)
        assert stream.read > number
        assert [number for each in await rounds(arrivals) for number in each] == [*range(6, 21)]
        await asyncio.gather(reader, filling)

    asyncio.run(run())
