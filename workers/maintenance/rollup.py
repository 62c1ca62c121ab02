"""When the rollup is filled and made coarser. Knows no clock and no connection; the keeper asks it and does it.

What has ended is counted from history (sql/migrations/0021_rollup.sql). The keeper waits for each look, so looks are short: a look that took
long makes the next one take on less and come later, and a fleet at full drain sees its last minute some seconds late rather than slower.
"""

from __future__ import annotations

from typing import Final

LAG: Final = 30.0
"""Seconds: what ended longer before it was committed is found by its job's id. Much less, and it is many ids; much more, and it is many rows."""
STEPS: Final = ((60, 900, 3 * 3600), (900, 3600, 3 * 86400), (3600, 86400, 15 * 86400))
"""Slices of so many seconds become slices of so many seconds, once they are older than so many. What the page draws reaches less far back."""
KEEP_DAYS: Final = 30
"""For so many days the rollup is kept at least, and as long as any job."""
_PAUSE: Final = 10.0
_PAUSE_MOST: Final = 60.0
"""Seconds between two looks. The charts are as late."""
_EASE: Final = 100.0
"""A look takes at most this part of the keeper's time, up to the longest pause."""
_HASTE: Final = 10.0
_HASTE_LEAST: Final = 0.5
"""The same while something is left over, the past before the first look or hours without a keeper; and so many seconds at least."""
_SPAN: Final = 300.0
_SPAN_MOST: Final = 8 * 86400.0
_GROWTH: Final = 8.0
_LONG: Final = 0.25
_SHORT: Final = 0.05
"""Seconds that a look takes."""
COARSEN: Final = 900.0
"""Seconds between two times that slices are made coarser."""


class Looks:
    """What the last look took, and what follows for the next.

    >>> looks = Looks()
    >>> looks.done(took=0.3, behind=False)
    >>> looks.pause, looks.span
    (30.0, 150.0)
    """

    def __init__(self) -> None:
        self.took = 0.0
        """Seconds that the last one took."""
        self.span = _SPAN
        """Seconds of the past that one takes on at the most."""
        self.pause = _PAUSE
        """Seconds until the next."""

    def done(self, *, took: float, behind: bool) -> None:
        """Note that a look took so many seconds, and whether something is left over."""
        self.took = took
        if took > _LONG:
            self.span = max(_PAUSE_MOST + 2 * LAG, self.span / 2)  # less than from one look to the next would always leave something over
        elif took < _SHORT and behind:
            self.span = min(_SPAN_MOST, self.span * _GROWTH)
        self.pause = max(_HASTE_LEAST, _HASTE * took) if behind else min(_PAUSE_MOST, max(_PAUSE, _EASE * took))
