"""The connection to one worker: its messages, each of a known type, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.handlers._remote import messages as m
from jobherd.workers.remote.frames import FrameReader, frame

if TYPE_CHECKING:
    from jobherd.workers.uplink.router import Router
    from jobherd.workers.uplink.sockets import Connection


class WorkerLink:
    """A connected worker. child: its incarnation; 0 before its Hello."""

    def __init__(self, connection: Connection, router: Router) -> None:
        self.child = 0
        self._connection, self._router = connection, router
        self._frames = FrameReader()
        connection.on_data = self._on_data
        connection.on_end = lambda: router.leave(self)

    def send(self, response: m.WorkResponse) -> None:
        """Send a message."""
        self._connection.send(frame(response))

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _on_data(self, data: bytes) -> None:
        self._frames.feed(data)
        while (body := self._frames.next()) is not None:
            try:
                request = m.WorkRequest.FromString(body)
            except m.DECODE_ERRORS:
                self.close()  # A job has written to the socket of its worker.
                return
            self._router.on_request(self, request, time.monotonic())
