"""The bytes of requests that all EnqueueStreams hold together, so that many streams cannot fill the memory.

Each stream also has a separate limit. A stream that holds nothing may read one request although
this memory is full. So clients that do not read their answers slow others down, and stop none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

MOST_BYTES: Final = 64 << 20
"""Bytes from which streams that hold requests read nothing more."""


class RequestMemory:
    """What the streams hold."""

    def __init__(self) -> None:
        self._bytes = 0
        self._waiting: set[asyncio.Event] = set()

    @property
    def is_full(self) -> bool:
        """Whether a stream that holds requests must not read."""
        return self._bytes >= MOST_BYTES

    def add(self, size: int) -> None:
        """A stream has read a request."""
        self._bytes += size

    def free(self, size: int) -> None:
        """A stream has answered requests, or has ended."""
        self._bytes -= size
        if not self.is_full:
            for event in self._waiting:
                event.set()
            self._waiting.clear()

    def wake(self, event: asyncio.Event) -> None:
        """Set an event once there is room."""
        self._waiting.add(event)
