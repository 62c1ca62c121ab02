"""Counts the schedules of periodic jobs and their instants in the database, for the metrics.

The counters begin with this process: each measurement adds the instants that were decided since the
one before. A database without schedules costs one statement that finds none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jobherd.workers.web.labels import OTHERS, Labels, label

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

STATES: Final = ("active", "paused", "failing", "retired", "error")
SCHEDULES: Final = 200
"""Most schedules shown. All schedules without their own label count as one."""
MOST: Final = 10_000
"""Most instants that one measurement counts."""
LAG: Final = 10.0
"""Seconds after which an instant is counted. Its transaction has long ended then."""


class Rows(Protocol):
    """Runs a statement; None if it took too long."""

    async def __call__(self, name: str, parameters: dict[str, Any], *, what: str) -> list[tuple[Any, ...]] | None:
        """Return the rows. what: the words for the log."""


class Lateness(NamedTuple):
    """How late a schedule is, in seconds."""

    next: float
    """Time since the next instant is due. 0: it is not due, or does not run."""
    last: float
    """Time from the last instant until it was decided."""


@dataclass(slots=True)
class ScheduleCounts:
    """The results of the last measurement.

    clock: monotonic seconds.
    """

    clock: Callable[[], float]
    states: dict[str, int] = field(default_factory=dict)
    """Schedules by state. Empty: there are none."""
    lateness: dict[str, Lateness] = field(default_factory=dict)
    """By the label of the schedule."""
    successes: dict[str, float] = field(default_factory=dict)
    """When the last run that completed did so, in Unix time, by schedule. 0: none has."""
    previous: dict[str, float] = field(default_factory=dict)
    """The instant before the last one that ran or should have, in Unix time, by active schedule."""
    instants: dict[tuple[str, str], int] = field(default_factory=dict)
    """By the label of the schedule and by decision."""
    _labels: Labels[str] = field(default_factory=lambda: Labels[str](SCHEDULES - 1))
    _since: datetime | None = None
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        """Note when counting begins."""
        self._began = self.clock()

    async def update(self, rows: Rows) -> None:
        """Measure again. Raises psycopg.Error."""
        wanted: dict[str, Any] = {"most": SCHEDULES, "names": self._labels.all()}
        sent = self.clock()
        found = await rows("observe/measure_schedules", wanted, what="the state of the schedules")
        if found is None:
            return
        self.states = dict.fromkeys(STATES, 0) if found or self.states else {}
        self.lateness = {}
        named: list[str] = []
        for _, schedule, state, number, late, delay in found:
            self.states[state] += number
            called = self._label(schedule)
            before = self.lateness.get(called, Lateness(0.0, 0.0))
            self.lateness[called] = Lateness(max(before.next, late), max(before.last, delay))
            if called != OTHERS:  # several schedules have no common last success
                named.append(called)
            for decided in ("ran", "missed"):
                self.instants.setdefault((called, decided), 0)
        await self._measure_successes(rows, named)
        if self._since is not None:
            await self._count(rows, self._since)
        elif found:
            # Counters are shown as 0 once, or their first instants would not be seen as an increase.
            # The clock of before the statement: none is counted that was decided before this process began.
            self._since = found[0][0] - timedelta(seconds=sent - self._began)

    async def _measure_successes(self, rows: Rows, named: list[str]) -> None:
        """Measure when the schedules with these names last succeeded."""
        self.successes, self.previous = {}, {}
        if not named:
            return
        found = await rows("observe/measure_successes", {"names": named}, what="the last successes of schedules")
        for schedule, succeeded, previous in found or ():
            self.successes |= {} if succeeded is None else {schedule: succeeded}
            self.previous |= {} if previous is None else {schedule: previous}

    async def _count(self, rows: Rows, since: datetime) -> None:
        wanted = {"since": since, "lag": LAG, "most": MOST}
        found = await rows("observe/count_ticks", wanted, what="the number of instants of schedules")
        for until, schedule, decided, number in found or ():
            self._since = until
            if schedule is not None:
                key = (self._label(schedule), decided)
                self.instants[key] = self.instants.get(key, 0) + number

    def _label(self, schedule: str | None) -> str:
        return OTHERS if schedule is None else label(self._labels, schedule)
