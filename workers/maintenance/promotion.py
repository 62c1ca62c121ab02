"""Makes scheduled jobs ready when they become due: the main task of the maintenance process."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

MOST: Final = 1000
"""Due jobs moved by one statement: more would hold their locks for long."""
LOCKED: Final = 0.05
"""Another maintenance process has locked a due job that could not be moved. Look again after this
many seconds.
"""


class Promotion:
    """Moves due jobs to the queue.

    due_at: monotonic time at which the next job becomes due, as far as is known.
    """

    def __init__(self, session: Session, poll: float) -> None:
        self.due_at = 0.0
        self._session = session
        self._poll = poll

    def promote(self) -> None:
        """Make all due jobs ready."""
        while True:
            asked = time.monotonic()
            if self._session.count("maintenance/promote_due", {"most": MOST}) >= MOST:
                continue
            rows = self._session.run("maintenance/find_next_due")
            now = time.monotonic()
            backstop = self._poll * random.uniform(0.9, 1.1)
            due_in = rows[0][0] if rows else backstop
            # A job that became due between the two statements was not locked by any session:
            # waiting would delay it.
            if due_in > 0 or -due_in >= now - asked:
                break
        self.due_at = now + min(backstop, due_in if due_in > 0 else LOCKED)
