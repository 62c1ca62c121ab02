"""A client of the gateway in a separate process. It reads commands and prints events, as JSON lines.

A line `{"stream": NAME, "do": ...}` is a command for a stream: `open` (`where`, and optional
`metadata`), `send` (`message`, as protobuf's JSON), `raw` (`data`, base64: bytes in place of a
message), `hold` and `read` (stop and resume reading messages), `end` (send no more), `cut` (close
the connection), or `watch` (`where`: print the health at each change, as `health`). The client
prints each message that arrives as `{"stream": NAME, "message": ...}`, and the end of a stream as
`{"stream": NAME, "status": CODE, "details": TEXT}`.

It does not use the streams of grpc.aio. There, a write that fails because the server has ended the
stream replaces the server's status by INTERNAL (grpc issue 36066).
"""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format

from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.messages import HealthCheckRequest, HealthCheckResponse, WorkRequest
from jobherd.handlers._remote.schema import HEALTH, WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # Try the port of a dead gateway again at once, but give each attempt to connect 60 s. Despite
    # its name, "min" limits that time.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 60_000),
    ("grpc.max_reconnect_backoff_ms", 200),
)

Order = dict[str, Any]


class Stream:
    """One stream with its own connection. order: the command that opens it."""

    def __init__(self, order: Order) -> None:
        self._name = order["stream"]
        self._reads = threading.Event()
        self._reads.set()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(order["where"], OPTIONS)
        method = WORKER.methods["Work"]
        factory: Any = self._channel.stream_stream
        self._call = factory(method.path, request_serializer=None, response_deserializer=method.response.FromString)(
            self._requests(),
            metadata=[tuple(each) for each in order.get("metadata", [])],
            wait_for_ready=order.get("patient", False),
        )
        start(self._read)

    def put(self, order: Order) -> None:
        """Accept a command. All commands except `hold` and `read` run in their order."""
        match order["do"]:
            case "hold":
                self._reads.clear()
            case "read":
                self._reads.set()
            case _:
                self._orders.put(order)

    def _requests(self) -> Iterator[bytes]:
        """Run the commands. gRPC takes the next request once the previous one is sent."""
        while True:
            order = self._orders.get()
            match order["do"]:
                case "send":
                    yield json_format.ParseDict(order["message"], WorkRequest()).SerializeToString()
                case "raw":
                    yield base64.b64decode(order["data"])
                case "end":
                    return
                case "cut":
                    self._channel.close()
                    return

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self._reads.wait()
            for message in self._call:
                say(stream=self._name, message=json_format.MessageToDict(message, preserving_proto_field_name=True))
                self._reads.wait()
        say(stream=self._name, status=self._call.code().name, details=self._call.details())
        self._channel.close()


SAYING = threading.Lock()


def say(**what: object) -> None:
    line = json.dumps(what)
    with SAYING:
        print(line, flush=True)


def start(what: Callable[..., None], *args: str) -> None:
    threading.Thread(target=what, args=args, daemon=True).start()


def watch(name: str, where: str) -> None:
    """Print the health at each change."""
    with grpc.insecure_channel(where, OPTIONS) as channel, contextlib.suppress(grpc.RpcError):
        for answer in client_call(channel, HEALTH.methods["Watch"])(HealthCheckRequest()):
            say(stream=name, health=HealthCheckResponse.ServingStatus.Name(answer.status))


def main() -> None:
    streams: dict[str, Stream] = {}
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "watch":
                start(watch, order["stream"], order["where"])
            case "open":
                streams[order["stream"]] = Stream(order)
            case _:
                streams[order["stream"]].put(order)


if __name__ == "__main__":
    main()
