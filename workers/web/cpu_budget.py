"""How much of a processor the web child may take: on average a tenth, however many people ask. No clock is read here but by default.

Without it a flood of scrapes runs one core hot, on which jobs should run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE: Final = 0.1
"""Seconds of processor time a second."""
SAVED: Final = 1.0
"""Seconds of processor time that may be saved up: a burst of scrapes is served at once."""
PAUSE: Final = 0.25
"""The longest pause at a time, in seconds: a probe of health waits no longer than a few of these."""


class CpuBudget:
    """A purse of processor time that fills slowly.

    >>> used = iter([0.0, 0.2, 1.5])
    >>> purse = Thrift(clock=iter([0.0, 1.0, 1.0]).__next__, used=used.__next__)
    >>> purse.pause(), purse.pause()
    (0.0, 0.25)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = time.thread_time) -> None:
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
        """Return for how long nobody new may be attended to, in seconds."""
        return min(PAUSE, max(0.0, -self._settle() / SHARE))

    def is_strained(self) -> bool:
        """Whether half of what may be saved up is gone: time to answer with what was rendered a moment ago."""
        return self._settle() < SAVED / 2
