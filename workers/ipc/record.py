"""Memory that several processes share without waiting for each other: a record that is never read torn, and the order of loads and stores."""

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
"""Processors on which an atomic exchange, as a lock makes it, orders all that stands before it and all behind."""
_lock = threading.Lock()


def barrier_of(machine: str) -> Callable[[], object]:
    """Return what makes a store seen by others before anything is read, on that sort of machine: a processor may turn the two round.

    A child shows itself idle and then looks at the epoch; the parent moves the epoch and then looks who is idle. Were either pair turned
    round, both could miss each other, and the wake-up would be lost. The same holds for the word that the parent hears.

    On ARM a lock orders what is inside it and no more: a store before it and a load behind it may both wander in. There it is the kernel's
    scheduler, which is entered through a full barrier (`__schedule` in kernel/sched/core.c; membarrier(2) rests on it): 0.3 µs more.
    """
    return _lock_and_unlock if machine in _ORDERED else os.sched_yield


def _lock_and_unlock() -> None:
    with _lock:
        pass


barrier: Final = barrier_of(os.uname().machine)


class DoubleBuffer:
    """A record of changing length with one writer and any number of readers, none of whom ever waits.

    It has two halves; the writer fills the older one and stamps it last. A reader takes the newest half whose checksum is right.
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
        """Return how many bytes a cell for records of up to `capacity` bytes takes."""
        return 2 * (_HEAD.size + capacity)

    def write(self, record: bytes) -> None:
        """Publish `record`; what is longer than the cell is cut."""
        if len(record) > self.capacity:
            record = record[: self.capacity]
        sequence = self._sequence = (self._sequence or self.read_with_sequence()[0]) + 1  # a successor goes on where its predecessor died
        at = self._offset + (sequence & 1) * self._half
        body = at + _HEAD.size
        self._view[body : body + len(record)] = record
        _HEAD.pack_into(self._view, at, sequence, len(record), crc32(record, sequence & 0xFFFFFFFF))

    def newest(self) -> int:
        """Return the number of the newest record, whole or not."""
        return int(max(_SEQUENCE.unpack_from(self._view, self._offset)[0], _SEQUENCE.unpack_from(self._view, self._offset + self._half)[0]))

    def read(self) -> bytes | None:
        """Return the newest whole record, or None if there is none."""
        return self.read_with_sequence()[1]

    def read_with_sequence(self) -> tuple[int, bytes | None]:
        """Return the newest whole record and its number (0 and None if there is none)."""
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
        """Called by who is no longer the writer: should it write again, it goes on from what stands there, not from its memory."""
        self._sequence = 0
