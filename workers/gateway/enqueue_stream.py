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
    from jobherd.workers.gateway.request_memory import RequestMemory

MOST_BYTES: Final = 8 << 20
"""Bytes of requests that may wait. Then nothing more is read, and HTTP/2 stops the client."""
MOST_REQUESTS: Final = 1000
"""Requests that may wait, and of one transaction."""


class Arrivals:
    """The requests of a stream that wait, in their order. memory: of all streams."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._waiting: deque[m.EnqueueStreamRequest] = deque()
        self._bytes = 0
        self._taken = 0
        """Bytes of the requests that were taken and have no answer."""
        self._ended = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, requests: AsyncIterable[m.EnqueueStreamRequest]) -> None:
        """Take requests until the client ends the stream. Raises what reading raises."""
        try:
            async for request in requests:
                size = request.ByteSize()
                self._waiting.append(request)
                self._bytes += size
                self._memory.add(size)
                self._arrived.set()
                while self._is_full():
                    self._room.clear()
                    self._memory.wake(self._room)
                    await self._room.wait()
        finally:
            self._ended = True
            self._arrived.set()

    def _is_full(self) -> bool:
        if self._bytes >= MOST_BYTES or len(self._waiting) >= MOST_REQUESTS:
            return True
        # A stream that holds nothing reads: what fills the memory may belong to clients that read no answers.
        return self._memory.is_full and self._bytes + self._taken > 0

    async def take(self) -> list[m.EnqueueStreamRequest]:
        """Return the requests of the next transaction: at least one; none if the client has sent all.

        Those of the last one are answered. The idempotency keys differ: a request whose key is taken waits for the
        commit of the first one.
        """
        self._free_taken()
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
            self._taken += request.ByteSize()
        self._bytes -= self._taken
        self._room.set()
        return taken

    def close(self) -> None:
        """Forget all requests: the stream has ended."""
        self._taken += self._bytes
        self._bytes = 0
        self._free_taken()

    def _free_taken(self) -> None:
        self._memory.free(self._taken)
        self._taken = 0
        self._room.set()
