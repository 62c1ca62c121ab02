"""Deletes rows whose jobs do not count any more, a page of them a second: keys of unique jobs, steps, waits.

Settling a job deletes none of them, so all of them are read in turns. In the same rounds it cancels the
children of canceled jobs that were locked when the job ended. Must not decide which count: the
statements do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

MOST: Final = 1000
"""Keys of a page, or jobs with steps."""
_PAGE: Final = 1.0
_ROUND: Final = 30.0
"""Seconds between two rounds over all rows. A dead row costs its place on disk only."""
_STATEMENTS: Final = (
    "maintenance/sweep_keys",
    "maintenance/sweep_steps",
    "maintenance/sweep_waits",
    "maintenance/sweep_children",
)


class KeySweep:
    """The rounds over all keys, steps and waits.

    due_at: monotonic time at which `step` is due next.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = 0.0
        self._session = session
        self._after: dict[str, str | int | None] = dict.fromkeys(_STATEMENTS)

    def step(self) -> None:
        """Delete the dead rows of the next page of each table that the round has not read yet."""
        for statement, after in list(self._after.items()):
            [(last, _)] = self._session.run(statement, {"after": after, "most": MOST})
            self._after[statement] = last
            if last is None:
                del self._after[statement]
        self.due_at = time.monotonic() + (_PAGE if self._after else _ROUND)
        self._after = self._after or dict.fromkeys(_STATEMENTS)
