"""A client of the gateway in a separate process, controlled line by line.

gRPC starts threads, and the tests' process forks.

    with Caller("127.0.0.1:9091") as client:
        stream = client.open("StreamJobs", max_in_flight=2)
        task = client.next(stream)["tasks"]["tasks"][0]
        client.call("ReportResult", session=..., results=[...])

Messages are dicts as in protobuf's JSON, with the field names of the proto files. An error is a dict
with `code` and `details`. grpc.aio is not used: see tests/gateway/client.py.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rejected(Exception):
    """The call ended with a status. code: its name."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['code']}: {answer['details']}")
        self.code, self.details = answer["code"], answer["details"]


class Caller:
    """The side of the tests. Answers arrive in any order, so each request has a number."""

    def __init__(self, where: str, *, token: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.caller", where, token],
            env=os.environ | {"PYTHONPATH": import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """Make a unary call and return its answer. Raises Rejected."""
        return self.wait(self.begin(method, **fields))

    def begin(self, method: str, **fields: Any) -> int:
        """Begin a unary call."""
        return self._send(do="call", method=method, fields=fields)

    def wait(self, number: int) -> dict[str, Any]:
        """Return the answer to the request with this number. Raises Rejected."""
        while number not in self._answers:
            line = self._process.stdout.readline()
            assert line, "the client has exited"
            answer = json.loads(line)
            self._answers[answer.pop("number")] = answer
        answer = self._answers.pop(number)
        if "code" in answer:
            raise Rejected(answer)
        return answer["message"]

    def open(self, method: str, **fields: Any) -> int:
        """Open a stream and return its number. fields: the request, if the method has a single one."""
        number = next(self._numbers)
        self._write(number=number, do="open", method=method, fields=fields)
        return number

    def put(self, stream: int, **fields: Any) -> None:
        """Write a request to a stream."""
        self._write(number=0, do="put", stream=stream, fields=fields)

    def next(self, stream: int) -> dict[str, Any]:
        """Wait for the next message of a stream. Raises Rejected at its end."""
        return self.wait(self._send(do="next", stream=stream))

    def cut(self, stream: int) -> None:
        """Reset a stream, as when its client dies."""
        self._write(number=0, do="cut", stream=stream)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _send(self, **words: Any) -> int:
        number = next(self._numbers)
        self._write(number=number, **words)
        return number

    def _write(self, **words: Any) -> None:
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


class Client:
    """The side of the separate process."""

    def __init__(self, where: str, token: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(where)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._streams: dict[int, StreamCall] = {}
        self._answering = threading.Lock()

    def serve(self) -> None:
        for line in sys.stdin:
            words = json.loads(line)
            if words["do"] in {"open", "cut", "put"}:
                getattr(self, words["do"])(**words)  # in the order of the lines
            else:
                threading.Thread(target=self.answer, kwargs=words, daemon=True).start()

    def answer(self, *, number: int, do: str, **words: Any) -> None:
        import grpc
        from google.protobuf.json_format import MessageToDict

        try:
            message = getattr(self, do)(**words)
            shown = {} if message is None else MessageToDict(message, preserving_proto_field_name=True)
            answer = {"message": shown}
        except grpc.RpcError as problem:
            answer = {"code": problem.code().name, "details": problem.details()}
        except Exception as problem:
            answer = {"code": type(problem).__name__, "details": str(problem)}
        with self._answering:
            print(json.dumps({"number": number, **answer}), flush=True)

    def call(self, *, method: str, fields: dict[str, Any]) -> Any:
        from jobherd.handlers._remote.grpc_methods import client_call

        described = find(method)
        return client_call(self._channel, described)(parse(described, fields), metadata=self._metadata, timeout=LIMIT)

    def open(self, *, number: int, method: str, fields: dict[str, Any], **_: Any) -> None:
        self._streams[number] = StreamCall(self._channel, find(method), fields, self._metadata)

    def put(self, *, stream: int, fields: dict[str, Any], **_: Any) -> None:
        self._streams[stream].put(fields)

    def next(self, *, stream: int) -> Any:
        return next(self._streams[stream].call, None)

    def cut(self, *, stream: int, **_: Any) -> None:
        self._streams[stream].call.cancel()


class StreamCall:
    """A stream. `put` works only if the method takes a stream of requests."""

    def __init__(
        self, channel: Any, method: Any, fields: dict[str, Any], metadata: tuple[tuple[str, str], ...]
    ) -> None:
        from jobherd.handlers._remote.grpc_methods import client_call

        self._method = method
        self._requests: queue.Queue[Any] = queue.Queue()
        self._ended = False
        request = self._taken() if method.streams_requests else parse(method, fields)
        self.call = client_call(channel, method)(request, metadata=metadata)
        if not self.call.add_callback(self._end):
            self._end()

    def put(self, fields: dict[str, Any]) -> None:
        """Send a request. Return once it is sent or the stream has ended: the next command may depend on it."""
        requests = self._requests
        requests.put(parse(self._method, fields))
        with requests.all_tasks_done:
            requests.all_tasks_done.wait_for(lambda: self._ended or not requests.unfinished_tasks)

    def _taken(self) -> Iterator[Any]:
        """Yield the requests. gRPC takes the next one once the previous one is sent."""
        while True:
            yield self._requests.get()
            self._requests.task_done()

    def _end(self) -> None:
        with self._requests.all_tasks_done:
            self._ended = True
            self._requests.all_tasks_done.notify_all()


def find(method: str) -> Any:
    from jobherd.handlers._remote.schema import DISPATCH, PRODUCER

    return {**DISPATCH.methods, **PRODUCER.methods}[method]


def parse(method: Any, fields: dict[str, Any]) -> Any:
    from google.protobuf.json_format import ParseDict

    return ParseDict(fields, method.request())


if __name__ == "__main__":
    Client(*sys.argv[1:]).serve()
