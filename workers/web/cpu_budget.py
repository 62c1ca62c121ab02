"""Limits the processor time of the web process: a tenth of one core on average, at any load.

Without this limit, a flood of scrapes keeps one core busy that jobs need. The module reads no clock
except the default ones.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE: Final = 0.1
"""Seconds of processor time per second."""
SAVED: Final = 1.0
"""Most seconds of processor time to save up, so that a burst of scrapes is served at once."""
PAUSE: Final = 0.25
"""The longest single pause, in seconds. A health probe waits for only a few of them."""


class CpuBudget:
    """A budget of processor time that refills slowly.

    >>> used = iter([0.0, 0.2, 1.5])
    >>> purse = CpuBudget(clock=iter([0.0, 1.0, 1.0]).__next__, used=used.__next__)
    >>> purse.pause(), purse.pause()
    (0.0, 0.25)
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._used = used
        self._at = clock()
        self._spent = used()
        self._left = SAVED

    def _settle(self) -> float:
        now, spent = self._clock(), self._used()
        self._left = min(SAVED, self._left + SHARE * (now - self._at) - (spent - self._spent))
        self._at, self._spent = now, spent
        return self._left

    def pause(self) -> float:
        """Return how many seconds the server must wait before it accepts another connection."""
        return min(PAUSE, max(0.0, -self._settle() / SHARE))

    def is_strained(self) -> bool:
        """Whether more than half of the saved-up budget is used: reuse the latest rendering."""
        return self._settle() < SAVED / 2
