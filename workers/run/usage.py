"""Measures the CPU time and memory of an attempt."""

from __future__ import annotations

import resource
import time
from typing import Final

LONG: Final = 0.005
"""Seconds of run time from which an attempt's resource usage is measured."""


class UsageMeter:
    """The resource usage of this process since the last measurement.

    at: monotonic time of that measurement.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Exclude the resource usage of this process until now from the next attempt."""
        self._used = _used()
        self.at = time.monotonic()

    def take(self, ended: float, ran: float) -> str | None:
        """Return the usage of an attempt as JSON, or None if it was too short to be measured."""
        before, self._used, self.at = self._used, _used(), ended
        if ran < LONG:
            return None
        used = self._used
        # as in post-mortems
        return f'{{"cpu_user":{used[0] - before[0]:.6f},"cpu_system":{used[1] - before[1]:.6f},"max_rss":{used[2]}}}'


def _used() -> tuple[float, float, int]:
    """Return user and system CPU seconds and the peak memory in bytes.

    They include the child processes of this process that have ended.
    """
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        own.ru_utime + children.ru_utime,
        own.ru_stime + children.ru_stime,
        max(own.ru_maxrss, children.ru_maxrss) * 1024,
    )
