"""Decides when a busy table is vacuumed. The maintenance process runs the vacuum.

Each claim scans past the dead rows at the head of `ready`, until a vacuum removes them from the
index. The server's own vacuum comes once a minute at most, and in a minute a fleet drains millions
of jobs. Too many vacuums are as bad, because each reads all indexes of a long queue. The
maintenance process waits for the vacuum, so one that takes longer than half a poll is left to the
server. This module uses no clock and no connection.
"""

from __future__ import annotations

from typing import Final

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


class Vacuum:
    """How long the last vacuum took, and what the vacuums left."""

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
