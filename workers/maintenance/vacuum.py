"""When a table that turns over is vacuumed. Knows no clock and no connection; the keeper asks it and does it.

Each claim walks past what has died at the head of `ready`, until a vacuum takes it out of the index. The server's own vacuum comes once a
minute at the most, and in a minute a fleet drains millions. Too often is as bad: a vacuum reads the indexes of a long queue from end to end.
The keeper waits for it, so one that takes longer than half a poll is left to the server.
"""

from __future__ import annotations

from typing import Final

VACUUMS: Final = {"ready": "vacuum_ready", "scheduled": "vacuum_scheduled", "running": "vacuum_running"}
"""The statement for each of the tables."""
DEAD: Final = 20_000
SHARE: Final = 0.05
"""So many dead rows, and their share of the living, are worth a vacuum."""
IN_VAIN: Final = 60.0
"""Seconds before a table is vacuumed again in which an old snapshot keeps the dead, unless twice as many have died."""


class Vacuum:
    """What the last vacuums took and left."""

    def __init__(self) -> None:
        self.took = 0.1
        """Seconds that the last one took."""
        self._left: dict[str, tuple[int, float]] = {}

    def pays(self, table: str, *, dead: int, live: int, now: float) -> bool:
        """Return whether to vacuum `table` now, of whose rows so many are dead and alive. `now` is monotonic.

        >>> Clearing().pays("ready", dead=30_000, live=100, now=0.0)
        True
        """
        left, at = self._left.get(table, (0, now))
        return dead >= DEAD + SHARE * live and (dead >= 2 * left or now >= at + IN_VAIN)

    def done(self, table: str, *, left: int, begun: float, ended: float) -> None:
        """Note that it was vacuumed, from when to when, and how many dead rows it had to leave."""
        self._left[table] = (left, ended)
        self.took = ended - begun
