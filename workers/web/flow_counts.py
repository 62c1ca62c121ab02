"""Counts flows, blocked jobs and ends that are not passed on yet in the database, for the metrics.

The counts of ended flows begin with this process: each measurement adds those that have ended since
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


@dataclass(slots=True)
class FlowCounts:
    """The results of the last measurement."""

    seen: bool = False
    """There are flows or blocked jobs, or there were."""
    open: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OPEN, 0))
    """Flows that have not ended, by state."""
    ended: dict[str, tuple[int, float]] = field(default_factory=lambda: dict.fromkeys(ENDED, (0, 0.0)))
    """Flows that have ended, by state: how many, and their duration together in seconds."""
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
        self.open = dict.fromkeys(OPEN, 0)
        for asked_at, what, state, number, seconds in found:
            if what == "open":
                self.open[state] = number
            elif what == "ended":
                before = self.ended[state]
                self.ended[state] = before[0] + number, before[1] + seconds
            elif what == "blocked":
                self.blocked = number
            else:
                self.lag = seconds
                self._since = asked_at
        self.seen = self.seen or bool(
            self.blocked or self.lag or sum(self.open.values()) or any(n for n, _ in self.ended.values())
        )
