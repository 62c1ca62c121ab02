"""Wakes suspended jobs for which there is a signal.

Costs nothing while no job waits: `note` starts it. It must not decide which signal a job takes: the
job does, when it runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

MOST: Final = 1000
"""Signals, and waits, of one statement."""
SOON: Final = 0.05
"""Seconds until the next look, right after something was found or was locked."""
LATER: Final = 5.0
"""Seconds between two looks while jobs wait and nothing is found: for a notification that was lost."""
_SLOWER: Final = 2.0
_NEVER: Final = float("inf")


class Matcher:
    """Gives signals to the jobs that wait for them.

    due_at: monotonic time at which `step` is due next.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = _NEVER
        self._session = session
        self._pause = SOON

    def note(self, *, waits: bool) -> None:
        """Note whether jobs wait for signals. If so, `step` is due now."""
        if waits:
            self.due_at, self._pause = 0.0, SOON

    def step(self) -> None:
        """Check new signals and new waits."""
        [(woken, again, waits)] = self._session.run("maintenance/match_signals", {"most": MOST})
        self._pause = SOON if woken or again else min(LATER, self._pause * _SLOWER)
        self.due_at = time.monotonic() + self._pause if waits else _NEVER
