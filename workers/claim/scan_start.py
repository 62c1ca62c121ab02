"""Skips dead index entries: chooses the position where a claim starts once a full scan has become slow.

While a session holds an old snapshot, rows claimed since then stay in the index as dead entries in
front of the live ones, and every full scan passes all of them. A worker that detects this starts
its claims after a position before which it has seen no job for a while. Only the position's own
queue and priority are skipped.

Three kinds of job can still wait before that position: jobs of transactions that drew their ids
long before they committed, jobs that a dead worker's claim released, and jobs that return under
their old ids from a delay or a retry. The last kind can be frequent, so these jobs have their own
index, and a claim of one job checks it from time to time. In addition, a claim makes a full scan at
intervals, and no worker sleeps past the next one.

tests/workers/claim/test_scan_start.py covers all three, and that a position is never younger than
LAG. This module uses no connection and reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.job.row import JobRow

SOUGHT: Final = sql.seeking("claim/claim_jobs")
WALKS: Final = frozenset({"claim/claim_jobs", "claim/claim_job"})
"""The statements that make a full scan. A claim with conditions leaves live jobs behind, so its
result says nothing about the rows before it.
"""
LONG: Final = 0.005
"""Seconds after which a claim may have scanned far."""
LONG_TOGETHER: Final = 0.02
"""The same limit for a claim that waited for the fsync of a settlement before it."""
ROW: Final = 0.00005
"""Additional seconds allowed for each job of a claim."""
DEAD: Final = 20_000
"""Number of dead rows that makes a full scan slow."""
LAG: Final = 0.25
"""Seconds between the check that found nothing before a position and the first claim that starts
there. A transaction may commit this late after it drew its ids.
"""
SPARSE: Final = 200
"""A full scan is repeated after this many times its own duration, which costs half a percent."""
BACK: Final = 50
"""After an empty check for returned jobs, the next check comes after this many times its duration,
which costs two percent.
"""
SOONEST: Final = 0.02
"""Minimum seconds between two such checks."""
LONGEST: Final = 15.0
"""Maximum seconds between two full scans."""
TURN: Final = 20
"""If queues take turns, a worker stays with one queue for this many times the duration of the last
full scan. A worker can skip the dead rows of only one queue at a time.
"""
MOST: Final = 64
"""Queues and priorities whose positions are kept."""
DOUBT: Final = 5.0
"""Seconds before the dead rows are counted again after the count was low."""


class Place(NamedTuple):
    """A position in a queue and priority.

    As far as was seen, no job is left up to and including this id.
    """

    queue: str
    priority: int
    id: int


class ScanStart:
    """What one worker has learned about the position of its jobs in the index."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time until which claims skip the full scan. 0.0: they make one, which is the
        normal case.
        """
        self.place: Place | None = None
        """The position where claims start instead. None: at the head of each queue, by the queues'
        names.
        """
        self.left_out = False
        """Whether the last claim skipped the rows before the position."""
        self.back = False
        """Whether that claim checked for returned jobs before the position."""
        self.turn_until = 0.0
        """Monotonic time until which a worker stays with one queue, if queues take turns. 0.0: dead
        rows do not require that.
        """
        self.doubt = 0.0
        """Duration in seconds of a slow scan whose cause is not known yet. 0.0: there is none."""
        self._dead = False
        self._mark: Place | None = None
        self._marked_at = 0.0
        self._others: dict[tuple[str, int], tuple[Place | None, Place | None, float]] = {}
        """Position, mark and time of the mark of other queues and priorities that were served while
        claims skip the full scan.
        """
        self._ask_at = 0.0
        self._back_at = 0.0

    def seeks(self, by: str, now: float) -> bool:
        """Return whether the next claim skips the full scan that statement `by` would make.

        `back` then says whether that claim also checks for returned jobs.
        """
        seeks = by in WALKS and now < self.until
        self.left_out = seeks and self.place is not None
        self.back = self.left_out and now >= self._back_at
        return seeks

    def rest(self, longest: float, now: float) -> float:
        """Return the maximum seconds to sleep after a claim that skipped rows.

        That is the time until a full scan is due, or a check for returned jobs if the claim made
        none.
        """
        return min(longest, max(0.0, (self.until if self.back else min(self.until, self._back_at)) - now))

    def note_claim(self, rows: Sequence[JobRow], *, sought: bool, took: float, together: bool, now: float) -> None:
        """Record a claim's result, and choose where the next claim starts.

        Args:
            rows: the claimed rows.
            sought: whether the claim skipped the full scan.
            took: seconds that it took.
            together: whether a settlement was sent with it.
            now: monotonic time.
        """
        found = Place(rows[0].queue, rows[0].priority, rows[0].id) if rows and rows[0].id else None
        if sought and self.back:
            if found and self.place and found[:2] == self.place[:2] and found <= self.place:
                return  # There may be more: the next claim checks again. Rows after the position were not read.
            self._back_at = now + max(SOONEST, BACK * took)
        if not sought:
            if took <= (LONG_TOGETHER if together else LONG) + ROW * len(rows):
                self._forget()
            elif now >= self._ask_at:
                self.doubt = took
        if self._dead and found:
            last = Place(rows[-1].queue, rows[-1].priority, rows[-1].id)
            self._note_place(found._replace(id=found.id - 1), last, now)

    def note_dead(self, dead: int, *, named: bool, now: float) -> None:
        """Record the number of dead rows, which was measured because a scan was slow.

        `named`: the queues are configured by name, so claims can look for them by name.
        """
        self._dead = dead >= DEAD
        if self._dead or named:
            self.until = now + min(LONGEST, SPARSE * self.doubt)
            self.turn_until = now + min(LONGEST, TURN * self.doubt) if self._dead else 0.0
        else:
            self._forget()
            self._ask_at = now + DOUBT
        self.doubt = 0.0

    def _note_place(self, here: Place, last: Place, now: float) -> None:
        if self._mark is None or self._mark[:2] != here[:2]:
            if self._mark is not None:
                self._others[self._mark[:2]] = self.place, self._mark, self._marked_at
                if len(self._others) > MOST:
                    del self._others[next(iter(self._others))]
            known = self._others.pop(here[:2], None)
            self.place, self._mark, self._marked_at = known or (None, here, now)
            if known is None:
                return
        if self.place and here < self.place:
            if last <= self.place:
                # A full scan found jobs before the position, perhaps more than it could take.
                # Without this, each further claim of such jobs would wait for another full scan.
                self.place, self._mark, self._marked_at = here, here, now
        elif now - self._marked_at >= LAG:
            self.place, self._mark, self._marked_at = self._mark, here, now

    def _forget(self) -> None:
        self.until = self.turn_until = 0.0
        self._others.clear()
        self._dead = self.left_out = self.back = False
        self.place = self._mark = None
