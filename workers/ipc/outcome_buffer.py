"""The ledger: what became of each job of the claims in a child's hands, in memory that survives the child.

A region of the board. An outcome stands here before the next job starts, so that whoever buries a child writes what it had finished, and runs nothing of that
again. Two claims may be open at once: the one in hand, and the one before while its settlement is on the way. Each has pages of its own;
entries are only ever added, and what was cut off by death is none. What an entry says is `settle.py`'s to know.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from jobherd.workers.ipc.record import barrier

_HEAD: Final = struct.Struct("<II")
_CLAIMS: Final = 2
"""The claim in hand, and the one before."""
_PAGES: Final = 128 * 1024
"""Bytes that a claim has for its entries."""
_ENTERED: Final = _CLAIMS
"""The words: the claims that are open, then how many bytes each has entered."""
_ENTRIES: Final = 8 * 2 * _CLAIMS


class OutcomeBuffer:
    """One slot's; written by the child, read by its parent."""

    SIZE: Final = _ENTRIES + _CLAIMS * _PAGES

    def __init__(self, view: memoryview, at: int) -> None:
        self._words = view[at : at + _ENTRIES].cast("Q")
        self._entries = view[at + _ENTRIES : at + self.SIZE]
        self._latest = 0
        """The pages of the claim in hand; the child knows it."""

    def release(self) -> None:
        """Let go of the region."""
        self._words.release()
        self._entries.release()

    # -- written by the child ---------------------------------------------------------------------------------------

    def open(self, token: int) -> None:
        """Called in the child: a claim begins. The one before may stay open meanwhile."""
        words = self._words
        latest = self._latest = 1 if words[0] else 0
        words[_ENTERED + latest] = 0  # before the token: entries of the last claim must never be read as this one's
        words[latest] = token

    def enter(self, record: bytes) -> bool:
        """Called in the child: what became of a job of the claim in hand, before the next one starts. False if it does not fit."""
        words, latest = self._words, self._latest
        at = words[_ENTERED + latest]
        end = at + _HEAD.size + len(record)
        if end > _PAGES:
            return False
        begin = latest * _PAGES
        self._entries[begin + at : begin + end] = _HEAD.pack(len(record), crc32(record)) + record
        words[_ENTERED + latest] = end  # last of all: an entry that was cut off by death is none
        return True

    def clear(self) -> None:
        """Called in the child: what was entered of the claim in hand stands in the database."""
        self._words[_ENTERED + self._latest] = 0

    def close(self, token: int) -> None:
        """Called in the child: that claim is over."""
        for place in range(_CLAIMS):
            if self._words[place] == token:
                self._words[_ENTERED + place] = 0
                self._words[place] = 0

    def restart(self) -> None:
        """Called in the parent before a fork: no claim is open."""
        for token in self.claims():
            self.close(token)

    # -- read by anyone ---------------------------------------------------------------------------------------------

    @property
    def is_doubled(self) -> bool:
        """Whether the claim before the one in hand is open too: it is not sure to be written."""
        return bool(self._words[0] and self._words[1])

    def claims(self) -> list[int]:
        """Return the claims that are open."""
        return [token for token in map(int, self._words[:_CLAIMS]) if token]

    def entries(self, token: int) -> list[bytes]:
        """Return what became of the jobs of that claim that are through, as they were entered.

        It may be read while the child writes: if the claim has changed meanwhile nothing is returned.
        """
        place = next((place for place in range(_CLAIMS) if token and self._words[place] == token), None)
        if place is None:
            return []
        end = min(int(self._words[_ENTERED + place]), _PAGES)
        data = bytes(self._entries[place * _PAGES : place * _PAGES + end])
        found, at = [], 0
        while at + _HEAD.size <= end:
            length, checksum = _HEAD.unpack_from(data, at)
            record = data[at + _HEAD.size : at + _HEAD.size + length]
            if crc32(record) != checksum:
                break
            found.append(record)
            at += _HEAD.size + length
        barrier()
        return found if self._words[place] == token and self._words[_ENTERED + place] >= end else []
