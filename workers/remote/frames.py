"""Messages on the Unix sockets between workers and their uplink: a length, then the message.

It does no I/O, and does not know the messages.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.message import Message

_HEAD: Final = struct.Struct(">I")


def frame(message: Message) -> bytes:
    """Return a message as it is sent."""
    body = message.SerializeToString()
    return _HEAD.pack(len(body)) + body


class FrameReader:
    """Finds the messages in what was received."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._rest += data

    def next(self) -> bytes | None:
        """Return the next complete message, or None."""
        rest = self._rest
        if len(rest) < _HEAD.size:
            return None
        end = _HEAD.size + _HEAD.unpack_from(rest)[0]
        if len(rest) < end:
            return None
        body = bytes(rest[_HEAD.size : end])
        del rest[:end]
        return body
