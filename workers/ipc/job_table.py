"""The job table: the short jobs of a worker's claims, in memory that survives the worker.

It is a part of the outcome buffer, and each open claim has its own rows. The worker lists the jobs
of a claim once. Then a job costs three stores: its start, the word of the status board that names
claim and row (`Word.SHORT`), and its end. A row with an end is a job that succeeded and returned
nothing. This module knows nothing of tokens: the outcome buffer says which claim has which rows.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.memory_barrier import barrier

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS: Final = 1024
"""Jobs of a claim that it can hold. More than `claim_size` may be."""
_WIDTHS: Final = (8, 8, 8, 8, 4, 2, 2, 2)
"""Bytes of a row in each column, in the order of `__init__`."""
_NONE: Final = array("d", bytes(8 * ROWS))


class JobTable:
    """The rows of one claim. The worker writes them, and its supervisor reads them.

    starts, ends: monotonic seconds by row, for a loop in which a call would cost more than the access.
    """

    SIZE: Final = 8 + ROWS * sum(_WIDTHS)

    def __init__(self, view: memoryview, at: int) -> None:
        self._child = view[at : at + 8].cast("q")
        bounds = accumulate((ROWS * width for width in _WIDTHS), initial=at + 8)
        ids, timeouts, starts, ends, keeps, attempts, most, kinds = (view[a:b] for a, b in pairwise(bounds))
        self._ids = ids.cast("q")
        self._timeouts, self.starts, self.ends = timeouts.cast("d"), starts.cast("d"), ends.cast("d")
        self._keeps = keeps.cast("i")
        self._attempts, self._most, self._kinds = attempts.cast("h"), most.cast("h"), kinds.cast("H")

    def release(self) -> None:
        """Release the memory views."""
        for counts in (self._child, self._ids, self._keeps, self._attempts, self._most, self._kinds):
            counts.release()
        for times in (self._timeouts, self.starts, self.ends):
            times.release()

    # -- written by the worker

    def clear(self) -> None:
        """Called in the worker: none of these jobs has an outcome here."""
        self.ends[:] = _NONE

    def list_jobs(self, child: int, jobs: Sequence[int], attempts: Sequence[int]) -> None:
        """Called in the worker, before it announces a job of the claim: its number, and the jobs' ids."""
        self._child[0] = child
        self._ids[: len(jobs)] = array("q", jobs)
        self._attempts[: len(jobs)] = array("h", attempts)

    def set_kind(self, first: int, last: int, *, kind: int, timeout: float, most: int, keep: int) -> None:
        """Called in the worker: the jobs from row `first` on, before `last`, are of this kind."""
        length = last - first
        self._kinds[first:last] = array("H", [kind]) * length
        self._timeouts[first:last] = array("d", [timeout]) * length
        self._most[first:last] = array("h", [most]) * length
        self._keeps[first:last] = array("i", [keep]) * length

    # -- read by any process

    def work(self, token: int, row: int) -> CurrentWork:
        """Return that the worker runs the job in this row."""
        start = self.starts[row]
        return CurrentWork(
            Phase.RUNNING,
            self._child[0],
            token,
            self._ids[row],
            self._kinds[row],
            self._attempts[row],
            self._most[row],
            started=start,
            deadline=start + self._timeouts[row],
        )

    def finished(self) -> list[tuple[int, float, float, int]]:
        """Return id, duration, end and days kept of each job that succeeded and returned nothing."""
        ends = self.ends.tolist()
        barrier()  # Order: a job has an end after all else of its row.
        return [(self._ids[row], end - self.starts[row], end, self._keeps[row]) for row, end in enumerate(ends) if end]
