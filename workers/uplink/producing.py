"""Enqueues for handlers through ProducerService, in threads: a call waits for the gateway."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.errors import RemoteError, UnreachableError
from jobherd.handlers._remote.schema import PRODUCER
from jobherd.handlers._remote.unary_calls import UnaryCalls
from jobherd.workers.remote.frames import FrameReader, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._remote.channels import Tls
    from jobherd.workers.uplink.sockets import Connection

_log = logging.getLogger("jobherd.uplink")

TIMEOUT: Final = 30.0
"""Seconds until an enqueue without an answer of a gateway fails."""
THREADS: Final = 8
"""Calls at the same time. Further ones wait."""


class Producing:
    """Carries out the calls of the handlers of all workers. post: calls a function in the event loop."""

    def __init__(
        self, addresses: Sequence[str], *, token: str, tls: Tls, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._calling = UnaryCalls(addresses, token=token, tls=tls, timeout=TIMEOUT)
        self._threads = ThreadPoolExecutor(THREADS, "jobherd-enqueue")
        self._post = post

    def accept(self, connection: Connection) -> None:
        """Take the connection of a handler, which sends one request."""
        frames = FrameReader()

        def on_data(data: bytes) -> None:
            frames.feed(data)
            if (body := frames.next()) is not None:
                self._threads.submit(self._enqueue, body, connection)

        connection.on_data = on_data

    def close(self) -> None:
        """Wait for no call any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, body: bytes, connection: Connection) -> None:
        answer = m.EnqueueStreamResponse(number=1)
        """number: 0 if the jobs may be enqueued all the same."""
        try:
            request = m.EnqueueRequest.FromString(body)
            done = self._calling.call(PRODUCER.methods["Enqueue"], request, m.EnqueueResponse)
            answer.ids.extend(done.ids)
            answer.existing.extend(done.existing)
            if done.HasField("holder"):
                answer.holder = done.holder
        except UnreachableError as problem:
            answer = m.EnqueueStreamResponse(refused=str(problem))
        except (RemoteError, *m.DECODE_ERRORS) as problem:
            answer.refused = str(problem)
        data = frame(answer)
        self._post(lambda: connection.send(data))
