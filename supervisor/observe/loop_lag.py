"""Measures how late the loop is: how long an event may have waited before the loop handled it.

It costs two stores a turn and reads no clock. A kill, a reap and a wake-up may each be delayed by
that time, whatever the cause: the supervisor's own work, a page that was swapped out, or too few
processors.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from jobherd.workers.inspect.phrases import duration

BOUNDS: Final = (0.001, 0.005, 0.02, 0.05, 0.2, 1.0)
"""Upper bounds of the histogram, in seconds; one more bucket holds the rest."""
LATE: Final = 0.05
"""Maximum delay in seconds that Jobherd promises."""


class LoopLag:
    """Counts the delays of the loop in a histogram.

    Attributes:
        worst: the longest delay so far, in seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.worst = 0.0

    def note(self, seconds: float) -> None:
        """Count a delay."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
        self.worst = max(self.worst, seconds)

    def facts(self) -> dict[str, int]:
        """Return the histogram by upper bound."""
        return dict(zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True))

    def __str__(self) -> str:
        late = sum(self.counts[bisect_left(BOUNDS, LATE) + 1 :])
        turns = f"the loop: {sum(self.counts)} turns, {late} of them more than {LATE * 1000:g} ms late"
        return f"{turns}, the worst {duration(self.worst)}"
