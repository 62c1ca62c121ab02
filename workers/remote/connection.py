"""The socket between a worker and its uplink. It sends and receives messages and does not know them.

It looks like a connection of psycopg to the session: `closed`, `broken`, `close`, `fileno`. So the
session notices its loss, and a descriptor that a job has closed, as it does with a database.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

import psycopg

from jobherd.handlers._remote import messages as m
from jobherd.workers.remote.frames import FrameReader, frame

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

NAME = "workers"
"""Name of the socket in the folder of the uplink."""
_CHUNK = 1 << 18


class UplinkConnection:
    """An open socket. Every error is a psycopg.OperationalError, after which it is closed."""

    def __init__(self, folder: Path) -> None:
        self.closed = False
        self._frames = FrameReader()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(folder / NAME))
        except OSError as problem:
            raise self._lost(problem) from None
        self._socket.setblocking(False)

    @property
    def broken(self) -> bool:
        """Whether the connection is lost."""
        return self.closed

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._socket.close()

    def send(self, message: Message) -> None:
        """Send a message. Raises psycopg.OperationalError."""
        left = memoryview(frame(message))
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, None)
            except OSError as problem:
                raise self._lost(problem) from None

    def receive(self, timeout: float | None) -> m.WorkResponse | None:
        """Return the next message, or None after `timeout` seconds. Raises psycopg.OperationalError."""
        until = None if timeout is None else time.monotonic() + timeout
        while (response := self.next_received()) is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._wait(select.POLLIN, left):
                return None
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                continue
            except OSError as problem:
                raise self._lost(problem) from None
            if not data:
                raise self._lost("it has closed the connection")
            self._frames.feed(data)
        return response

    def next_received(self) -> m.WorkResponse | None:
        """Return a message that has arrived together with an earlier one, or None."""
        body = self._frames.next()
        return None if body is None else m.WorkResponse.FromString(body)

    def _wait(self, events: int, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _lost(self, why: object) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError(f"the uplink is not there: {why}")
