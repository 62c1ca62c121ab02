"""Where a claim begins, once the walk from the very head of the queue has become long. Knows no connection and reads no clock.

While somebody holds an old snapshot, what was claimed since stays in the index, dead and in front of what lives, and each claim walks past all of it. A
worker that finds so begins behind a place before which it has seen nothing for a while. Only the row's own queue and priority are passed over
up to there. Three things may wait before that place all the same: jobs of transactions that drew their ids long before they were committed,
jobs that a dead child gave back, and jobs that came back under their old ids from a delay or for a retry. The last, which may be many, have an
index of their own, and now and then a claim of one job looks there. Nothing else relies on the place either: every so often a claim walks all the
way, and until then nobody sleeps for longer. tests/workers/claim/test_scan_start.py holds all three, and that a place is never younger than LAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.job.row import JobRow

SOUGHT: Final = sql.seeking("claim_jobs")
WALKS: Final = frozenset({"claim_jobs", "claim_job"})
"""The claims that walk. One that is narrowed leaves jobs behind that live: what it finds says nothing of what is before."""
LONG: Final = 0.005
"""Seconds: what takes longer may have walked far."""
LONG_TOGETHER: Final = 0.02
"""The same where a settlement went before the claim and waited for its fsync."""
ROW: Final = 0.00005
"""Seconds that each job of a claim may take beside."""
DEAD: Final = 20_000
"""Dead rows that make a walk long."""
LAG: Final = 0.25
"""Seconds between the look that found nothing before a place and the first claim that starts there: so long transactions may lag."""
SPARSE: Final = 200
"""A whole walk is made again after so many times what it took: it costs half a percent."""
BACK: Final = 50
"""A claim looks for jobs that came back after so many times what the last one took that looked and found none: it costs two percent."""
SOONEST: Final = 0.02
"""Seconds between two such looks at the least."""
LONGEST: Final = 15.0
"""Seconds between two whole walks at the most."""
TURN: Final = 20
"""Where queues take turns, a worker stays with one of them for so many times what the last walk took. It seeks past the dead rows of one queue only."""
MOST: Final = 64
"""Queues and priorities whose places are kept."""
DOUBT: Final = 5.0
"""Seconds before the dead are counted again that were few."""


class Place(NamedTuple):
    """Of this queue and priority everything up to this id is gone, as far as was seen."""

    queue: str
    priority: int
    id: int


class ScanStart:
    """What a worker knows of the way to its jobs."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time until which claims need not walk; 0.0: they walk, as nearly always."""
        self.place: Place | None = None
        """Where they start instead; None: at the head, by the names of the queues."""
        self.left_out = False
        """Whether the last claim left out what is before the place."""
        self.back = False
        """Whether it looked for jobs there that had come back."""
        self.turn_until = 0.0
        """Monotonic time until which a worker stays with one queue, where queues take turns; 0.0: dead rows are no reason to."""
        self.doubt = 0.0
        """Seconds that a walk took of which nobody knows yet why it was long; 0.0: of none."""
        self._dead = False
        self._mark: Place | None = None
        self._marked_at = 0.0
        self._others: dict[tuple[str, int], tuple[Place | None, Place | None, float]] = {}
        """Place, mark and its time in the other queues and priorities that were served while claims seek."""
        self._ask_at = 0.0
        self._back_at = 0.0

    def seeks(self, by: str, now: float) -> bool:
        """Return whether the next claim, which would be made by this statement, seeks instead. `back` says whether it is to look back."""
        seeks = by in WALKS and now < self.until
        self.left_out = seeks and self.place is not None
        self.back = self.left_out and now >= self._back_at
        return seeks

    def rest(self, longest: float, now: float) -> float:
        """Return for how long to sleep at the most after a claim that left something out: until one may walk, or look back if it has not."""
        return min(longest, max(0.0, (self.until if self.back else min(self.until, self._back_at)) - now))

    def note_claim(self, rows: Sequence[JobRow], *, sought: bool, took: float, together: bool, now: float) -> None:
        """Note what a claim has found that did not walk (`sought`) or did, in so many seconds, `together` with a settlement."""
        found = Place(rows[0].queue, rows[0].priority, rows[0].id) if rows and rows[0].id else None
        if sought and self.back:
            if found and self.place and found[:2] == self.place[:2] and found <= self.place:
                return  # there may be more: the next claim looks again, and of what is behind the place nothing was seen
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
        """Note how many rows are dead, asked for in doubt, and whether the queues are named, so that they can be sought by name."""
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
                # A walk has found jobs before it, and maybe more than it could take: each further claim of them would wait for another walk.
                self.place, self._mark, self._marked_at = here, here, now
        elif now - self._marked_at >= LAG:
            self.place, self._mark, self._marked_at = self._mark, here, now

    def _forget(self) -> None:
        self.until = self.turn_until = 0.0
        self._others.clear()
        self._dead = self.left_out = self.back = False
        self.place = self._mark = None
