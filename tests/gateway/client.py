"""A client of the gateway that does what it is told, in a process of its own: JSON lines in and out.

A line `{"stream": NAME, "do": ...}` says what to do with a stream: `open` (`where`, and optional
`metadata`), `send` (`message`, as protobuf's JSON), `raw` (`data`, base64: bytes in place of a
message), `hold` and `read` (take no more messages, and go on), `end` (no more is sent), `cut` (the
connection ends), or `watch` (`where`: says the health as it changes, as `health`). Each message that arrives is printed as `{"stream": NAME, "message": ...}`, and
the end of a stream as `{"stream": NAME, "status": CODE, "details": TEXT}`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.messages import HealthCheckRequest, HealthCheckResponse, WorkRequest
from jobherd.handlers._remote.schema import HEALTH, WORKER

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # The port that a dead gateway has left is tried again at once, but a connection may take its
    # time to come about: that is what "min" limits, whatever its name says.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 60_000),
    ("grpc.max_reconnect_backoff_ms", 200),
)


class Stream:
    """One stream, with a connection of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reads = asyncio.Event()
        self.reads.set()
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._write())]

    def put(self, order: dict[str, Any]) -> None:
        """Take an order. All but holding back are done in turn."""
        match order["do"]:
            case "hold":
                self.reads.clear()
            case "read":
                self.reads.set()
            case _:
                self._orders.put_nowait(order)

    async def _write(self) -> None:
        while True:
            order = await self._orders.get()
            try:
                match order["do"]:
                    case "open":
                        self._open(order)
                    case "send":
                        message = json_format.ParseDict(order["message"], WorkRequest())
                        await self._call.write(message.SerializeToString())
                    case "raw":
                        await self._call.write(base64.b64decode(order["data"]))
                    case "end":
                        await self._call.done_writing()
                    case "cut":
                        await self._channel.close()
            except (grpc.RpcError, asyncio.InvalidStateError):
                pass  # the reader tells why
            except asyncio.CancelledError:
                if order["do"] != "cut":
                    raise

    def _open(self, order: dict[str, Any]) -> None:
        self._channel = grpc.aio.insecure_channel(order["where"], OPTIONS)
        method = WORKER.methods["Work"]
        factory: Any = self._channel.stream_stream
        self._call = factory(method.path, request_serializer=None, response_deserializer=method.response.FromString)(
            metadata=[tuple(each) for each in order.get("metadata", [])], wait_for_ready=order.get("patient", False)
        )
        self._tasks.append(asyncio.create_task(self._read(self._call)))

    async def _read(self, call: Any) -> None:
        try:
            while True:
                await self.reads.wait()
                message = await call.read()
                if message is grpc.aio.EOF:
                    break
                shown = json_format.MessageToDict(message, preserving_proto_field_name=True)
                say(stream=self.name, message=shown)
        except (grpc.RpcError, asyncio.CancelledError):
            pass
        try:
            code, details = await call.code(), await call.details()
            say(stream=self.name, status=code.name, details=details)
        except asyncio.CancelledError:
            say(stream=self.name, status="CANCELLED", details="cut")


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def watch(name: str, where: str) -> None:
    """Say the health as it changes."""
    async with grpc.aio.insecure_channel(where, OPTIONS) as channel:
        with contextlib.suppress(grpc.RpcError):
            async for answer in client_call(channel, HEALTH.methods["Watch"])(HealthCheckRequest()):
                say(stream=name, health=HealthCheckResponse.ServingStatus.Name(answer.status))


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    streams: dict[str, Stream] = {}
    watching: set[asyncio.Task[None]] = set()
    async for line in lines:
        order = json.loads(line)
        name = order["stream"]
        if order["do"] == "watch":
            watching.add(asyncio.create_task(watch(name, order["where"])))
            continue
        if order["do"] == "open":
            streams[name] = Stream(name)
        streams[name].put(order)


if __name__ == "__main__":
    asyncio.run(main())
