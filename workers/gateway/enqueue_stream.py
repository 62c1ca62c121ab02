"""The requests of an EnqueueStream: those that have arrived together are enqueued together.

While a transaction is under way, further requests arrive for the next one, so transactions grow with
the load. What the database does is in `producing.py`, and gRPC is in `producer_service.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from jobherd.workers.gateway.new_jobs import MOST_JOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from jobherd.handlers._remote import messages as m

MOST_BYTES: Final = 8 << 20
"""Bytes of requests that may wait. Then nothing more is read, and HTTP/2 stops the client."""
MOST_REQUESTS: Final = 1000
"""Requests that may wait, and of one transaction."""


class Arrivals:
    """The requests of a stream that wait, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[m.EnqueueStreamRequest] = deque()
        self._bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, requests: AsyncIterable[m.EnqueueStreamRequest]) -> None:
        """Take requests until the client ends the stream. Raises what reading raises."""
        try:
            async for request in requests:
                self._waiting.append(request)
                self._bytes += request.ByteSize()
                self._arrived.set()
                while self._bytes >= MOST_BYTES or len(self._waiting) >= MOST_REQUESTS:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._ended = True
            self._arrived.set()

    async def take(self) -> list[m.EnqueueStreamRequest]:
        """Return the requests of the next transaction: at least one; none if the client has sent all.

        Their idempotency keys differ: a request whose key is taken waits for the commit of the first one.
        """
        while not self._waiting and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        taken: list[m.EnqueueStreamRequest] = []
        keys: set[str] = set()
        jobs = 0
        while self._waiting:
            request = self._waiting[0]
            jobs += len(request.jobs)
            if taken and (jobs > MOST_JOBS or request.idempotency_key in keys):
                break
            if request.idempotency_key:
                keys.add(request.idempotency_key)
            taken.append(self._waiting.popleft())
            self._bytes -= request.ByteSize()
        self._room.set()
        return taken
