"""Vacuums the busy tables when that pays.

Each claim scans past the dead rows at the head of `ready`, until a vacuum removes them from the
index. The server's own vacuum comes once a minute at most, and in a minute a fleet drains millions
of jobs. Too many vacuums are as bad, because each reads all indexes of a long queue. The
maintenance process waits for the vacuum, so one that takes longer than half a poll is left to the
server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

VACUUMS: Final = {
    "ready": "maintenance/vacuum_ready",
    "scheduled": "maintenance/vacuum_scheduled",
    "running": "maintenance/vacuum_running",
}
"""The statement for each of the tables."""
DEAD: Final = 20_000
SHARE: Final = 0.05
"""A vacuum needs DEAD dead rows plus this share of the live ones."""
IN_VAIN: Final = 60.0
"""Seconds before the next vacuum of a table in which an old snapshot keeps dead rows, unless their
number has doubled.
"""
_OFTEN: Final = 2.0
"""Seconds between two counts of dead rows, while rows die."""
_SELDOM: Final = 10.0
"""Seconds between two such counts when almost none die. An idle fleet then sends the database less
than three statements a second.
"""
_SLOWEST: Final = 3600.0
"""Seconds without data for a vacuum. Given up too early, it would be started again and again."""


class Vacuum:
    """Decides whether the vacuum of a table pays, by what the earlier ones took and left."""

    def __init__(self) -> None:
        self.took = 0.1
        """Seconds that the last one took."""
        self._left: dict[str, tuple[int, float]] = {}

    def pays(self, table: str, *, dead: int, live: int, now: float) -> bool:
        """Return whether to vacuum `table` now.

        dead, live: numbers of its dead and live rows. now: monotonic seconds.

        >>> Vacuum().pays("ready", dead=30_000, live=100, now=0.0)
        True
        """
        left, at = self._left.get(table, (0, now))
        return dead >= DEAD + SHARE * live and (dead >= 2 * left or now >= at + IN_VAIN)

    def done(self, table: str, *, left: int, begun: float, ended: float) -> None:
        """Note a vacuum of `table`.

        Its times, and the number of dead rows that it could not remove.
        """
        self._left[table] = (left, ended)
        self.took = ended - begun


class VacuumTask:
    """Counts the dead rows of the busy tables and vacuums them.

    due_at: monotonic time at which `run` is due next.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = 0.0
        self._session = session
        self._vacuum = Vacuum()

    def run(self, next_job_at: float) -> None:
        """Vacuum the busy tables if that pays and no job that becomes due at `next_job_at` has to wait for it."""
        rows = self._session.run("maintenance/count_dead_rows")
        for table, dead, live in rows:
            begun = time.monotonic()
            if (
                self._vacuum.pays(table, dead=dead, live=live, now=begun)
                and begun + 2 * self._vacuum.took < next_job_at
            ):
                with self._session.with_patience(_SLOWEST):
                    # Whether it succeeds or not, the rest is left for a later vacuum.
                    self._session.run_alone(VACUUMS[table])
                left = {name: dead for name, dead, _ in self._session.run("maintenance/count_dead_rows")}
                self._vacuum.done(table, left=left[table], begun=begun, ended=time.monotonic())
        busy = any(dead > DEAD / 10 for _, dead, _ in rows)
        self.due_at = time.monotonic() + (_OFTEN if busy else _SELDOM)
