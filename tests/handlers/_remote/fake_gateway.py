"""A gateway controlled by a test: a real grpc server whose streams the test reads and answers.

It enforces no rules. A test takes the next stream, reads its requests, sends responses and ends it with a status.
Each wait ends after at most `LIMIT` seconds.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import grpc

from jobherd.handlers._remote import grpc_methods, schema
from jobherd.handlers._remote import messages as m

LIMIT = float(os.environ.get("SCENE_LIMIT", "50"))
"""Seconds to wait for an event that does not come."""
END = object()


class Stream:
    """One connected stream, as the gateway sees it."""

    def __init__(self, context, requests):
        self.context, self.token = context, None
        self._read, self._write = SimpleQueue(), SimpleQueue()
        self._status = None
        self.over = threading.Event()
        context.add_callback(self._over)
        threading.Thread(target=self._pump, args=(requests,), daemon=True).start()

    def _pump(self, requests):
        try:
            for request in requests:
                self._read.put(request)
        except Exception:
            pass  # the stream broke
        self._read.put(END)

    def _over(self):
        self.over.set()
        self._write.put(END)

    def responses(self):
        """Yield the scripted responses until the test ends the stream."""
        while (response := self._write.get()) is not END:
            yield response
        if self._status is not None:
            self.context.abort(*self._status)

    def read(self, kind=None):
        """Return the next request, or the next one of a kind; skip heartbeats and Readys before it."""
        while True:
            request = self._read.get(timeout=LIMIT)
            if request is END:
                assert kind in (None, END), f"the stream ended instead of {kind}"
                return END
            found = request.WhichOneof("event")
            if kind in (None, found):
                return request if kind is None else getattr(request, kind)
            assert found in ("heartbeat", "ready"), f"{found} instead of {kind}"

    def read_ready(self):
        """Return the next Ready, whether it came alone or with results."""
        request = self.read()
        return request.results.ready if request.WhichOneof("event") == "results" else request.ready

    def send(self, **event):
        self._write.put(m.WorkResponse(**event))

    def welcome(self, session="1", **fields):
        """Read Hello and accept it. Return Hello."""
        hello = self.read("hello")
        fields = {"session_seconds": 30.0, "lease_seconds": 60.0, "max_slots": 100, **fields}
        self.send(hello_ack=m.HelloAck(session=session, **fields))
        return hello

    def give(self, ready, *tasks, claim=1):
        self.send(
            tasks=m.TaskBatch(ready=ready, tasks=[m.Task(claim=claim, **{"kind": "a", **task}) for task in tasks])
        )

    def confirm(self, batch, *refusals):
        self.send(result_ack=m.ResultAck(up_to=batch.number, refusals=refusals))

    def end(self, status=None, details=""):
        """End the stream with a status, or normally without one."""
        self._status = (getattr(grpc.StatusCode, status), details) if status else None
        self._write.put(END)


class FakeGateway:
    """A server on its own port. `producer`: functions for the methods of ProducerService."""

    def __init__(self, address="127.0.0.1:0", credentials=None, **producer):
        self.streams = SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        methods = {name: producer.get(name, _refuse) for name in schema.PRODUCER.methods}
        self._server.add_generic_rpc_handlers(
            (
                grpc_methods.server_handler(schema.WORKER, {"Work": self._work}),
                grpc_methods.server_handler(schema.PRODUCER, methods),
            )
        )
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self.address = f"localhost:{self.port}"
        self._server.start()

    def _work(self, requests, context):
        stream = Stream(context, requests)
        self.streams.put(stream)
        yield from stream.responses()

    def stream(self):
        """Return the next stream that connects."""
        return self.streams.get(timeout=LIMIT)

    def has_stream(self):
        try:
            self.streams.get_nowait()
        except Empty:
            return False
        return True

    def stop(self):
        """Break all connections at once."""
        self._server.stop(None).wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def _refuse(_request, context):
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")
