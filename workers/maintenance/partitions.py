"""Keeps the partitions of the history: makes those of the next days and drops expired ones.

Making one delays settlements, so only a few are made at a time. Those that the outcomes of today and
tomorrow need are made at once, the others while no job runs. The caller decides when no due job has
to wait for it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.workers.database.errors import is_retryable

if TYPE_CHECKING:
    from jobherd.workers.database.connection import Session

_log = logging.getLogger("jobherd.maintenance")

SLOW: Final = 600.0
"""Seconds without data for statements that read a long history. Given up too early, they would be
started again and again.
"""
_HOUR: Final = 3600.0
_AGAIN: Final = 300.0
_SOON: Final = 60.0
"""Seconds until partitions are tried again: _AGAIN after a wait of 2 s, and _SOON after one of 50
ms. `keep_partitions` waits for only 50 ms while only the last day's partition is missing.
"""
_FEW: Final = 2
"""Partitions made in one transaction: no worker can settle for the 15 ms that each takes."""
_LONG: Final = 1.0
_EASE: Final = 10.0
"""Seconds that _FEW partitions may take. If they take longer, as in the first days after a version
that left all rows in the default partition, the next ones wait ten times as long. Otherwise no
worker could settle until all were made.
"""
_BUSY: Final = 5.0
_NEVER_IDLE: Final = 60.0
"""Seconds until partitions that are not needed yet are tried again, because jobs run, and seconds
after which they are made while jobs run, still _BUSY seconds apart.
"""
AHEAD: Final = 32
"""Days for which partitions always exist: 30 for what is kept that long, and two for times without
a maintenance process.
"""
FARTHEST: Final = 400
"""Maximum days with partitions, if many jobs are kept for longer. A search for a job queries each
partition.
"""
CROWDED: Final = 64 << 20
"""Bytes in the default partition from which on there are that many. A day's rows are searched in
all of it, and no worker settles meanwhile.
"""


class Partitions:
    """The partitions of the history.

    due_at: monotonic time at which `keep` is due next.
    complete: the last call found all of them in place.
    rows_stay: it makes no partition to which rows of finished jobs move: all are in place, or those that
    outcomes need are, and no row has ever been outside of them.
    """

    def __init__(self, session: Session) -> None:
        self.due_at = 0.0
        self.complete = False
        self.rows_stay = False
        self._session = session
        self._patient_until: float | None = None
        """Monotonic time until which partitions wait for a moment without running jobs. None: none waits."""
        self._made = 0
        """Partitions made since their number was last logged."""

    def keep(self, now: float, *, ready: bool = True) -> bool:
        """Make a few missing partitions, or drop expired ones. Return whether more must be made.

        ready: whether READY was reported. Before that, only partitions that outcomes need are made,
        and a default partition that takes long to search is left alone.
        """
        self.complete = self.rows_stay = False
        begun = time.monotonic()
        try:
            wanted = {"least": AHEAD, "most": FARTHEST, "crowded": CROWDED}
            [(ahead, crowded, locks, missing, needed, busy, vacant)] = self._session.run(
                "maintenance/count_days_ahead", wanted
            )
            self.rows_stay = bool(vacant and not needed)
            # Another maintenance process does this, perhaps for minutes. The next statement would
            # wait for it, and due jobs would wait here.
            if crowded is None:
                self.due_at = now + _AGAIN
                return False
            if not ready and (crowded or not needed):
                return False
            if not missing or needed or not busy:
                self._patient_until = None
            elif self._patient_until is None or now < self._patient_until:
                self._patient_until = self._patient_until or now + _NEVER_IDLE
                self.due_at = now + _BUSY
                return False
            with self._session.with_patience(SLOW):
                [(made, dropped)] = self._session.run(
                    "maintenance/keep_partitions", {"ahead": ahead, "most": _FEW}, stubborn=False
                )
        except psycopg.Error as problem:
            if not is_retryable(problem):
                raise
            # A long read of the history. Rows that go to the default partition until then are moved
            # later, and nothing is lost.
            brief = time.monotonic() - begun < _LONG
            again = _SOON if brief else _AGAIN
            self.due_at = now + again
            level = logging.INFO if brief else logging.WARNING
            _log.log(level, "partitions cannot be checked yet, trying again in %g s: %s", again, type(problem).__name__)
            return False
        self._made += made
        if made >= _FEW:
            if (took := time.monotonic() - begun) > _LONG:
                self.due_at = begun + took + _EASE * took
            elif self._patient_until is not None:
                self.due_at = now + _BUSY
            return True
        self.due_at = now + _HOUR
        self.complete = self.rows_stay = True
        if self._made or dropped:
            _log.info("made %d partitions, dropped %d", self._made, dropped)
            self._made = 0
        if locks is not None:
            _log.warning(
                "finished jobs are kept longer than the %d days that have partitions: adding a day's "
                "partition scans the whole default partition, "
                "and no worker can record outcomes meanwhile; set the server's max_locks_per_transaction "
                "to %d, or keep finished jobs for less time",
                ahead, locks,
            )  # fmt: skip
        return False
