"""A scripted uplink: a listening socket with one worker, whose messages the test reads and answers."""

from __future__ import annotations

import socket
import threading

from jobherd.handlers._remote import messages as m
from jobherd.workers.remote.connection import NAME
from jobherd.workers.remote.frames import FrameReader, frame

LIMIT = 30.0
"""Seconds to wait for a message."""


class Uplink:
    """The uplink's end of the connection to one worker."""

    def __init__(self, folder):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / NAME))
        self._listener.listen()
        self._listener.settimeout(LIMIT)
        self.connection = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        if self.connection is not None:
            self.connection.close()

    def accept(self):
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(LIMIT)
        self._frames = FrameReader()
        return self

    def welcome(self):
        """Accept a worker and answer its Hello. Returns the Hello."""
        hello = self.accept().read().hello
        self.send(hello_ack=m.HelloAck())
        return hello

    def read(self):
        while (body := self._frames.next()) is None:
            data = self.connection.recv(65536)
            assert data, "the worker has closed the connection"
            self._frames.feed(data)
        return m.WorkRequest.FromString(body)

    def send(self, **event):
        self.send_all(m.WorkResponse(**event))

    def send_all(self, *responses):
        """Send messages that arrive together."""
        self.connection.sendall(b"".join(map(frame, responses)))

    def give(self, ready, *ids, claim=9):
        self.send(tasks=m.TaskBatch(ready=ready, tasks=[m.Task(id=one, claim=claim, kind="a") for one in ids]))

    def confirm(self, number, *lost):
        refusals = [m.Refusal(reason=m.Refusal.REASON_LOST, task=m.TaskRef(task_id=one)) for one in lost]
        self.send(result_ack=m.ResultAck(up_to=number, refusals=refusals))

    def close(self):
        self.connection.close()


class Beside:
    """Runs a function in a thread during a block, and raises its exception at the end of the block."""

    def __init__(self, function):
        self._function, self.result, self._problem = function, None, None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self.result = self._function()
        except BaseException as problem:
            self._problem = problem

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self._problem is not None:
            raise self._problem
