"""Passes the ends of jobs on to the jobs that wait for them.

Costs nothing while no job waits for another one: `note` starts it. It must not decide what an end
means: the statements do, with the waiting jobs locked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

MOST: Final = 1000
"""Jobs changed by one statement."""
SOON: Final = 0.05
"""Seconds until the next look, right after something was found."""
LATER: Final = 1.0
"""Seconds between two looks while nothing is found and no worker reports an end. Also the delay with which the end of
a job is noticed that was running when the first job was enqueued behind it."""
_SLOWER: Final = 1.5
_NEVER: Final = float("inf")


class Resolver:
    """The looks for ends.

    due_at: monotonic time of the next one.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = _NEVER
        self._session = session
        self._pause = SOON
        self._past: int | None = None
        """The page of unmarked upstream jobs that is next begins behind this one."""

    def note(self, *, joins: bool) -> None:
        """Note whether jobs wait for others. If so, `step` is due now."""
        if joins:
            self.due_at, self._pause = 0.0, SOON

    def step(self) -> None:
        """Mark upstream jobs, and pass ends on."""
        [(self._past,)] = self._session.run("maintenance/mark_upstreams", {"past": self._past, "most": MOST})
        [(ended, released, cancelled, unmarked, joins)] = self._session.run("maintenance/resolve_ends", {"most": MOST})
        if ended or released or cancelled:
            self._pause = SOON
        # An unmarked job may have ended between the two statements, or a page of them is left.
        pause = 0.0 if released == MOST or (unmarked and self._past is not None) else self._pause
        self.due_at = time.monotonic() + pause if joins else _NEVER
        self._pause = min(LATER, self._pause * _SLOWER)
