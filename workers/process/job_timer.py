"""The interval timer that ends a job at its deadline.

One timer serves all jobs, and a job costs no system call. It is set for the earliest deadline
requested. If it fires early, `interrupt.py` sets it again for the current deadline. Whether a job
has changed the timer shows in its interval, which is a marker that never elapses. Remaining times
differ by when they are read, and a process that was delayed between two reads would count as
changed.
"""

from __future__ import annotations

import signal
import time
from typing import Final

FOR_EVER: Final = float("inf")
AGAIN: Final = 1.0
"""Seconds between two exceptions in a job that has not ended after the first."""
_MARK: Final = 2.0**23 + 0.125
"""The interval of the timer, 97 days, which the kernel returns exactly. A job that sets the timer
itself does not know it.
"""


class JobTimer:
    """The timer of this process.

    rings_at: monotonic time at which SIGALRM arrives next.
    """

    def __init__(self) -> None:
        self.rings_at = FOR_EVER
        self._marked = False
        """The timer has been set and carries the marker."""

    def rearm_if_touched(self) -> bool:
        """Reset the timer if a job stopped or set it, and return whether it was unchanged.

        Costs a system call, so it is for long jobs.
        """
        marked = self._marked  # Order: before the timer is read. A signal after it may be the first to set the timer.
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        if abs(self.rings_at - time.monotonic() - left) > AGAIN / 10:
            # A job that restores what it found restores it late. That alone does not make a process
            # due for replacement: see the module docstring.
            self.rings_at = FOR_EVER
        if interval == _MARK or not (marked or interval or left):
            return True
        self.rings_at = FOR_EVER
        signal.setitimer(signal.ITIMER_REAL, _MARK, _MARK)
        self._marked = True
        return False

    def arm(self, at: float) -> None:
        """Have SIGALRM arrive at this monotonic time."""
        self.rings_at = at
        signal.setitimer(signal.ITIMER_REAL, min(max(0.0005, at - time.monotonic()), _MARK), _MARK)
        self._marked = True
