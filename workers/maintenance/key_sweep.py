"""Deletes the keys of unique jobs that do not count any more, a page of them a second.

A key is never released, so all of them are read in turns. Must not decide which count: the
statement does, with each key locked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

MOST: Final = 1000
"""Keys of a page."""
_PAGE: Final = 1.0
_ROUND: Final = 30.0
"""Seconds between two rounds over all keys. A dead key costs its place on disk only."""


class KeySweep:
    """The rounds over all keys.

    due_at: monotonic time at which `step` is due next.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = 0.0
        self._session = session
        self._after: str | None = None

    def step(self) -> None:
        """Delete the dead keys of the next page."""
        [(self._after, _)] = self._session.run("maintenance/sweep_keys", {"after": self._after, "most": MOST})
        self.due_at = time.monotonic() + (_ROUND if self._after is None else _PAGE)
