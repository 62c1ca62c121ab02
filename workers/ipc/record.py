"""Shared memory without locks: a record that is never read half-written, and a memory barrier."""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD: Final = struct.Struct("<QII")
_SEQUENCE: Final = struct.Struct("<Q")

_ORDERED: Final = ("x86_64", "i686", "i386")
"""Processors on which an atomic exchange, as a lock makes it, orders all memory accesses before and
after it.
"""
_lock = threading.Lock()


def barrier_of(machine: str) -> Callable[[], object]:
    """Return a full memory barrier for that machine: it makes a store visible before the next load.

    A processor may reorder the two. A worker shows itself idle and then reads the epoch. The
    supervisor changes the epoch and then reads which workers are idle. If either pair were
    reordered, both could miss each other, and the wake would be lost. The same holds for the flag
    that says whether notifications are on.

    On ARM, a lock orders only what is inside it: a store before it and a load after it may both
    move into it. There the kernel's scheduler provides the barrier, because it is entered through a
    full one (`__schedule` in kernel/sched/core.c; membarrier(2) relies on it). It costs 0.3 µs
    more.
    """
    return _lock_and_unlock if machine in _ORDERED else os.sched_yield


def _lock_and_unlock() -> None:
    with _lock:
        pass


barrier: Final = barrier_of(os.uname().machine)


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
