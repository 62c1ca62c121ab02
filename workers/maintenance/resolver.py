"""Passes the ends of jobs on to the jobs that wait for them, and looks for jobs that have vanished every hour.

Costs nothing while no job waits for another one: `note` starts it. It must not decide what an end
means: the statements do, with the waiting jobs locked.
"""

from __future__ import annotations

import random
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
CHECK: Final = 3600.0
"""Seconds between two looks for jobs that were deleted with SQL. Each reads the members of all open flows."""
_PAGE: Final = 100
"""Flows, and jobs that others wait for, that one statement of it checks."""
_NEVER: Final = float("inf")
LARGEST: Final = 2**63 - 1


class Resolver:
    """Passes the ends of jobs on.

    due_at: monotonic time at which `step` is due next.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = _NEVER
        self._session = session
        self._pause = SOON
        self._past: int | None = None
        """The page of unmarked upstream jobs that is next begins behind this one."""
        self._check_at = time.monotonic() + CHECK * random.random()
        """Monotonic time of the next search for vanished jobs. Random: the processes of a fleet start together."""
        self._checked: tuple[int | None, int | None] = (None, None)

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
        elif joins and time.monotonic() >= self._check_at:
            self._check()
        # An unmarked job may have ended between the two statements, or a page of them is left.
        pause = 0.0 if ended >= MOST or (unmarked and self._past is not None) else self._pause
        self.due_at = time.monotonic() + pause if joins else _NEVER
        self._pause = min(LATER, self._pause * _SLOWER)

    def _check(self) -> None:
        """Look for vanished jobs in the next page."""
        flow, job = self._checked
        wanted = {"past_flow": flow, "past_job": job, "most": _PAGE}
        [(flow, job)] = self._session.run("maintenance/find_vanished", wanted)
        # Behind the last page of one kind nothing is found, until the other has ended too.
        self._checked = (flow or (LARGEST if job else None), job or (LARGEST if flow else None))
        if flow is None and job is None:
            self._check_at = time.monotonic() + CHECK
