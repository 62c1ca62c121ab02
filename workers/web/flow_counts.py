"""Counts flows, blocked and suspended jobs, signals and late ends in the database, for the metrics.

The counts of ended flows and of signals begin with this process: each measurement adds those since
the one before. A database without flows and blocked jobs costs one statement that finds none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobherd.workers.web.schedule_counts import LAG

if TYPE_CHECKING:
    from datetime import datetime

    from jobherd.workers.web.schedule_counts import Rows

MOST: Final = 100_000
"""Most rows of each table that one measurement counts."""
OPEN: Final = ("open", "cancelling")
ENDED: Final = ("completed", "failed", "cancelled")
WAITS: Final = ("signal", "children")


@dataclass(slots=True)
class FlowCounts:
    """The results of the last measurement."""

    seen: bool = False
    """There are flows or blocked jobs, or there were."""
    open: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OPEN, 0))
    """Flows that have not ended, by state."""
    ended: dict[str, tuple[int, float]] = field(default_factory=lambda: dict.fromkeys(ENDED, (0, 0.0)))
    """Flows that have ended, by state: how many, and their duration together in seconds."""
    seen_waits: bool = False
    """There are suspended jobs or signals, or there were."""
    suspended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAITS, 0))
    """Jobs that wait for a signal or for child jobs."""
    signals: int = 0
    """Signals that were sent."""
    blocked: int = 0
    """Jobs that wait for other jobs."""
    lag: float = 0.0
    """Seconds since the oldest end that is not passed on yet."""
    _since: datetime | None = None

    async def update(self, rows: Rows) -> None:
        """Measure again. Raises psycopg.Error."""
        wanted = {"since": self._since, "lag": LAG, "most": MOST}
        found = await rows("observe/measure_flows", wanted, what="the state of the flows")
        if found is None:
            return
        self.open, self.suspended = dict.fromkeys(OPEN, 0), dict.fromkeys(WAITS, 0)
        for asked_at, what, state, number, seconds in found:
            if what == "open":
                self.open[state] = number
            elif what == "ended":
                before = self.ended[state]
                self.ended[state] = before[0] + number, before[1] + seconds
            elif what == "suspended":
                self.suspended[state] = number
            elif what == "signals":
                self.signals += number
            elif what == "blocked":
                self.blocked = number
            else:
                self.lag = seconds
                self._since = asked_at
        self.seen_waits = self.seen_waits or bool(self.signals or sum(self.suspended.values()))
        self.seen = self.seen or bool(
            self.blocked or self.lag or sum(self.open.values()) or any(n for n, _ in self.ended.values())
        )
