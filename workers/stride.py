"""Where a claim begins, once the walk from the very head of the queue has become long. Knows no connection and reads no clock.

While somebody holds an old snapshot, what was claimed since stays in the index, dead and in front of what lives, and each claim walks past all of it. A
worker that finds so begins behind a place before which it has seen nothing for a while. Only the row's own queue and priority are passed over
up to there. Two things may wait before that place all the same: jobs of transactions that drew their ids long before they were committed, and
jobs that came back under their old ids, from a delay or a dead child. So nothing relies on the place: every so often a claim walks all the
way, and until then nobody sleeps for longer. tests/workers/test_stride.py holds both, and that a place is never younger than LAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.claimed import Claimed

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
LONGEST: Final = 15.0
"""Seconds between two whole walks at the most."""
DOUBT: Final = 5.0
"""Seconds before the dead are counted again that were few."""


class Place(NamedTuple):
    """Of this queue and priority everything up to this id is gone, as far as was seen."""

    queue: str
    priority: int
    id: int


class Stride:
    """What a worker knows of the way to its jobs."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time until which claims need not walk; 0.0: they walk, as nearly always."""
        self.place: Place | None = None
        """Where they start instead; None: at the head, by the names of the queues."""
        self.left_out = False
        """Whether the last claim left out what is before the place."""
        self.doubt = 0.0
        """Seconds that a walk took of which nobody knows yet why it was long; 0.0: of none."""
        self._dead = False
        self._mark: Place | None = None
        self._marked_at = 0.0
        self._ask_at = 0.0

    def seeks(self, by: str, now: float) -> bool:
        """Return whether the next claim, which would be made by this statement, seeks instead."""
        seeks = by in WALKS and now < self.until
        self.left_out = seeks and self.place is not None
        return seeks

    def rest(self, longest: float, now: float) -> float:
        """Return for how long to sleep at the most after a claim that left something out: until one may walk."""
        return min(longest, max(0.0, self.until - now))

    def note_claim(self, rows: Sequence[Claimed], *, sought: bool, took: float, together: bool, now: float) -> None:
        """Note what a claim has found that did not walk (`sought`) or did, in so many seconds, `together` with a settlement."""
        if not sought:
            if took <= (LONG_TOGETHER if together else LONG) + ROW * len(rows):
                self._forget()
            elif now >= self._ask_at:
                self.doubt = took
        if self._dead and rows and rows[0].id:
            self._note_place(Place(rows[0].queue, rows[0].priority, rows[0].id - 1), now)

    def note_dead(self, dead: int, *, named: bool, now: float) -> None:
        """Note how many rows are dead, asked for in doubt, and whether the queues are named, so that they can be sought by name."""
        self._dead = dead >= DEAD
        if self._dead or named:
            self.until = now + min(LONGEST, SPARSE * self.doubt)
        else:
            self._forget()
            self._ask_at = now + DOUBT
        self.doubt = 0.0

    def _note_place(self, here: Place, now: float) -> None:
        if self._mark is None or self._mark[:2] != here[:2]:
            self.place, self._mark, self._marked_at = None, here, now
        elif self.place and here < self.place:
            # A walk has found jobs before it, maybe more than it could take: without this each further claim of them would wait for another walk.
            self.place, self._mark, self._marked_at = here, here, now
        elif now - self._marked_at >= LAG:
            self.place, self._mark, self._marked_at = self._mark, here, now

    def _forget(self) -> None:
        self.until = 0.0
        self._dead = self.left_out = False
        self.place = self._mark = None
