"""Serve only the messages of a gateway, without database and bookkeeping: gRPC and protobuf remain.

    python -m tests.bench.gateway_floor WHERE PAYLOAD

It answers each Ready of `tests.bench.gateway_client` at once with as many tasks as a gateway would, each
with this payload and made by the gateway's own function, and reads the fields of each Result once. A
number of jobs on its standard input starts a run. It writes the run's seconds to its standard output.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.grpc_methods import server_handler
from jobherd.handlers._remote.schema import WORKER
from jobherd.workers.gateway.claims import _add_task
from jobherd.workers.job.row import JobRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROW: Final = {
    "token": 7,
    "kind": "bench:noop",
    "queue": "local",
    "attempts": 1,
    "waited": 0.1,
    "created_at": 1.7e9,
    "run_at": 1.7e9,
}
LEASE: Final = 60.0


class Stream:
    """A connected client, and its Readys that wait for the next run. gRPC allows one write at a time."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.waiting: list[m.Ready] = []
        self.writing = asyncio.Lock()

    async def write(self, message: m.WorkResponse) -> None:
        async with self.writing:
            await self.context.write(message)


class Floor:
    """The service. payload: the payload of each job."""

    def __init__(self, payload: str) -> None:
        self._row = JobRow(**(dict.fromkeys(JobRow._fields) | ROW | {"payload": payload}))
        self._streams: list[Stream] = []
        self._made = 0
        self._left = 0
        self._open = 0
        self._ended = asyncio.Event()

    async def run(self, jobs: int) -> float:
        """Send `jobs` jobs. Return the seconds until the Result of the last one has arrived."""
        began = time.monotonic()
        self._left = self._open = jobs
        self._ended.clear()
        for stream in self._streams:
            waiting, stream.waiting = stream.waiting, []
            for ready in waiting:
                await self._answer(stream, ready, 0)
        await self._ended.wait()
        return time.monotonic() - began

    async def work(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve a client."""
        stream = Stream(context)
        self._streams.append(stream)
        async for data in requests:
            request = m.WorkRequest.FromString(data)
            match request.WhichOneof("event"):
                case "hello":
                    await stream.write(m.WorkResponse(hello_ack=m.HelloAck(session="1")))
                case "ready":
                    await self._answer(stream, request.ready, 0)
                case "results":
                    self._read(request.results)
                    await self._answer(stream, request.results.ready, request.results.number)

    def _read(self, batch: m.ResultBatch) -> None:
        for result in batch.results:
            assert result.WhichOneof("outcome") == "completed"
            assert result.task_id
            assert result.claim
            assert result.ran_seconds >= 0
        self._open -= len(batch.results)
        if not self._open:
            self._ended.set()

    async def _answer(self, stream: Stream, ready: m.Ready, ack: int) -> None:
        """Answer a Ready, and acknowledge a ResultBatch with it. With `ack` 0 there is no acknowledgment."""
        count = min(ready.count, self._left)
        self._left -= count
        if not count:
            stream.waiting.append(ready)
            if ack:
                await stream.write(m.WorkResponse(result_ack=m.ResultAck(up_to=ack)))
            return
        message = m.WorkResponse()
        message.tasks.ready = ready.number
        if ack:
            message.tasks.ack.up_to = ack
        for _ in range(count):
            self._made += 1
            _add_task(message.tasks, self._row._replace(id=self._made))
        for task in message.tasks.tasks:
            task.lease_seconds = LEASE
        await stream.write(message)


async def main() -> None:
    where, payload = sys.argv[1:]
    floor = Floor(payload)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((server_handler(WORKER, {"Work": floor.work}, unread=True),))
    server.add_insecure_port(where)
    await server.start()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(await floor.run(int(line)), flush=True)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
