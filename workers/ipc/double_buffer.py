"""Shares a record between processes without locks: a reader never gets a partially written one."""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

_HEAD: Final = struct.Struct("<QII")
_SEQUENCE: Final = struct.Struct("<Q")


class DoubleBuffer:
    """A record of variable length with one writer and any number of readers, none of which ever waits.

    It has two halves. The writer fills the older one and stamps it last. A reader takes the newest
    half whose checksum is correct.
    """

    __slots__ = ("_half", "_offset", "_sequence", "_view", "capacity")

    def __init__(self, view: memoryview, offset: int, capacity: int) -> None:
        self._view = view
        self._offset = offset
        self._half = _HEAD.size + capacity
        self._sequence = 0
        self.capacity = capacity

    @staticmethod
    def size(capacity: int) -> int:
        """Return the size in bytes of a buffer for records of up to `capacity` bytes."""
        return 2 * (_HEAD.size + capacity)

    def write(self, record: bytes) -> None:
        """Publish `record`. A record longer than the capacity is cut."""
        if len(record) > self.capacity:
            record = record[: self.capacity]
        # A new process continues the numbers of the previous one.
        sequence = self._sequence = (self._sequence or self.read_with_sequence()[0]) + 1
        at = self._offset + (sequence & 1) * self._half
        body = at + _HEAD.size
        self._view[body : body + len(record)] = record
        _HEAD.pack_into(self._view, at, sequence, len(record), crc32(record, sequence & 0xFFFFFFFF))

    def newest(self) -> int:
        """Return the number of the newest record, complete or not."""
        return int(
            max(
                _SEQUENCE.unpack_from(self._view, self._offset)[0],
                _SEQUENCE.unpack_from(self._view, self._offset + self._half)[0],
            )
        )

    def read(self) -> bytes | None:
        """Return the newest complete record, or None if there is none."""
        return self.read_with_sequence()[1]

    def read_with_sequence(self) -> tuple[int, bytes | None]:
        """Return the number of the newest complete record and the record; 0 and None if there is none."""
        best: tuple[int, bytes | None] = (0, None)
        for at in (self._offset, self._offset + self._half):
            sequence, length, checksum = _HEAD.unpack_from(self._view, at)
            if sequence <= best[0] or length > self.capacity:
                continue
            record = bytes(self._view[at + _HEAD.size : at + _HEAD.size + length])
            if crc32(record, sequence & 0xFFFFFFFF) == checksum:
                best = (sequence, record)
        return best

    def restart(self) -> None:
        """Called by a process that stops being the writer.

        If it writes again later, it continues from the number in memory, not from its own.
        """
        self._sequence = 0
