"""Decides when the rollup is filled and made coarser. The maintenance process does both.

Finished jobs are counted from history (sql/schema/26_rollup.sql). The maintenance process
waits for each count, so counts are short. A count that took long makes the next one cover less and
come later. A fleet at full load then sees its last minute a few seconds late instead of becoming
slower. This module uses no clock and no connection.
"""

from __future__ import annotations

from typing import Final

LAG: Final = 30.0
"""Seconds. A job that finished longer before its commit is found by its id. A much smaller value
means many ids, and a much larger one many rows.
"""
STEPS: Final = ((60, 900, 3 * 3600), (900, 3600, 3 * 86400), (3600, 86400, 15 * 86400))
"""Slice length, coarser slice length, and the age at which the first becomes the second, in
seconds. What the dashboard shows of each slice length reaches less far back.
"""
KEEP_DAYS: Final = 30
"""Minimum days that the rollup is kept. It is kept for as long as any job."""
_PAUSE: Final = 10.0
_PAUSE_MOST: Final = 60.0
"""Seconds between two counts. The charts lag by as much."""
_EASE: Final = 100.0
"""A count takes at most one part in this of the process's time, up to the longest pause."""
_HASTE: Final = 10.0
_HASTE_LEAST: Final = 0.5
"""The same while jobs are left over (the history before the first count, or hours without a
maintenance process), and the minimum in seconds.
"""
_SPAN: Final = 300.0
_SPAN_MOST: Final = 8 * 86400.0
_GROWTH: Final = 8.0
_LONG: Final = 0.25
_SHORT: Final = 0.05
"""Seconds that a count takes."""
COARSEN: Final = 900.0
"""Seconds between two times that slices are made coarser."""


class CountPace:
    """Chooses the pause before the next count, and its span, by how long the last one took.

    >>> pace = CountPace()
    >>> pace.done(took=0.3, behind=False)
    >>> pace.pause, pace.span
    (30.0, 150.0)
    """

    def __init__(self) -> None:
        self.took = 0.0
        """Seconds that the last count took."""
        self.span = _SPAN
        """Maximum seconds of history that one count covers."""
        self.pause = _PAUSE
        """Seconds until the next count."""

    def done(self, *, took: float, behind: bool) -> None:
        """Note that a count took this many seconds, and whether jobs are left over."""
        self.took = took
        if took > _LONG:
            # A span shorter than the time between two counts would always leave jobs over.
            self.span = max(_PAUSE_MOST + 2 * LAG, self.span / 2)
        elif took < _SHORT and behind:
            self.span = min(_SPAN_MOST, self.span * _GROWTH)
        self.pause = max(_HASTE_LEAST, _HASTE * took) if behind else min(_PAUSE_MOST, max(_PAUSE, _EASE * took))
