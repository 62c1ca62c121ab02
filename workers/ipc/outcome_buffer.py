"""The outcome buffer: outcomes of a worker's claims, in memory that survives the worker.

It is a region of the status board. An outcome is stored here before the next job starts. If the
worker dies, the supervisor records what it had finished, and none of that runs again. Two claims
may be open at once: the current one, and the previous one while its settlement is on the way. Each
has its own pages. Entries are only added, and an entry cut off by death does not count.
`job/finished.py` defines the content of an entry. Short jobs that succeed need none: their outcome is
a store in the job table (`job_table.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from jobherd.workers.ipc.job_table import ROWS, JobTable
from jobherd.workers.ipc.memory_barrier import barrier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.ipc.current_work import CurrentWork

_HEAD: Final = struct.Struct("<II")
_CLAIMS: Final = 2
"""The current claim, and the previous one."""
_PAGES: Final = 128 * 1024
"""Bytes for the entries of a claim."""
_ENTERED: Final = _CLAIMS
"""Index of the words that count the bytes entered by each claim. The tokens of the open claims come
before them.
"""
_ENTRIES: Final = 8 * 2 * _CLAIMS


class OutcomeBuffer:
    """The buffer of one slot. The worker writes it, and its supervisor reads it."""

    SIZE: Final = _ENTRIES + _CLAIMS * (_PAGES + JobTable.SIZE)

    def __init__(self, view: memoryview, at: int) -> None:
        self._words = view[at : at + _ENTRIES].cast("Q")
        tables = at + _ENTRIES + _CLAIMS * _PAGES
        self._entries = view[at + _ENTRIES : tables]
        self._tables = [JobTable(view, tables + place * JobTable.SIZE) for place in range(_CLAIMS)]
        self._latest = 0
        """Index of the current claim's pages. Only the worker knows it."""

    def release(self) -> None:
        """Release the memory views."""
        self._words.release()
        self._entries.release()
        for table in self._tables:
            table.release()

    # -- written by the worker

    def open(self, token: int) -> None:
        """Called in the worker: a claim begins. The previous one may stay open meanwhile."""
        words = self._words
        latest = self._latest = 1 if words[0] else 0
        # Order: before the token. Entries of an earlier claim must never be read as entries of this
        # one.
        words[_ENTERED + latest] = 0
        self._tables[latest].clear()
        words[latest] = token

    def enter(self, record: bytes) -> bool:
        """Called in the worker, before the next job starts.

        Store the outcome of a job of the current claim.

        Return False if it does not fit.
        """
        words, latest = self._words, self._latest
        at = words[_ENTERED + latest]
        end = at + _HEAD.size + len(record)
        if end > _PAGES:
            return False
        begin = latest * _PAGES
        self._entries[begin + at : begin + end] = _HEAD.pack(len(record), crc32(record)) + record
        words[_ENTERED + latest] = end  # Order: last of all. An entry cut off by death must not count.
        return True

    def clear(self) -> None:
        """Called in the worker: the stored outcomes of the current claim are in the database."""
        self._words[_ENTERED + self._latest] = 0
        self._tables[self._latest].clear()

    def close(self, token: int) -> None:
        """Called in the worker: that claim is complete or lost."""
        for place in range(_CLAIMS):
            if self._words[place] == token:
                self._words[_ENTERED + place] = 0
                self._words[place] = 0

    def restart(self) -> None:
        """Called in the supervisor before a fork: no claim is open."""
        for token in self.claims():
            self.close(token)

    @property
    def table(self) -> JobTable:
        """The current claim's rows of the job table, for the worker."""
        return self._tables[self._latest]

    def list_jobs(self, child: int, jobs: Sequence[int], attempts: Sequence[int]) -> int:
        """Called in the worker: short jobs of the current claim, at most `ROWS`, are going to run.

        Return a number that is not 0. To announce a job, store its start in the job table, and then
        this number plus the job's row as `Word.SHORT` of the status board.
        """
        self.table.list_jobs(child, jobs, attempts)
        # Invariant: the word contains the token. Otherwise a reader could take the job for one of the
        # claim that has these rows next.
        return int(self._words[self._latest]) * ROWS

    # -- read by any process

    @property
    def is_doubled(self) -> bool:
        """Whether the previous claim is open too, so its outcomes may not be recorded yet."""
        return bool(self._words[0] and self._words[1])

    def claims(self) -> list[int]:
        """Return the tokens of the open claims."""
        return [token for token in map(int, self._words[:_CLAIMS]) if token]

    def entries(self, token: int) -> list[bytes]:
        """Return the stored outcomes of that claim.

        The worker may write at the same time. If the claim has changed meanwhile, nothing is
        returned.
        """
        place = self._place(token)
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

    def finished(self, token: int) -> list[tuple[int, float, float, int]]:
        """Return id, duration, end and days kept of that claim's jobs whose outcome is in the job table."""
        place = self._place(token)
        found = [] if place is None else self._tables[place].finished()
        barrier()
        return found if self._place(token) == place else []

    def announced(self, short: int) -> CurrentWork | None:
        """Return what `Word.SHORT` announces, or None if that claim is not open."""
        token, row = divmod(short, ROWS)
        place = self._place(token)
        found = None if place is None else self._tables[place].work(token, row)
        barrier()
        return found if self._place(token) == place else None

    def _place(self, token: int) -> int | None:
        """Return the index of that claim's pages, or None if it is not open."""
        return next((place for place in range(_CLAIMS) if token and self._words[place] == token), None)
