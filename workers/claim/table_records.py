"""Lets a worker process one record of the application's own tables, unless pauses or hooks forbid it.

The claimer decides when: the queue has no job, or a record is due. `stores/runner.py` processes the
record.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.workers.claim.restriction import Unrestricted
    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.stores.runner import Tables


class TableRecords:
    """The records of a worker's table stores, except of stores that are paused or restricted."""

    def __init__(self, tables: Tables, session: Session, spec: ChildSpec, restriction: Unrestricted) -> None:
        self._tables = tables
        self._session = session
        self._control = spec.control
        self._poll = spec.settings.poll
        self._restriction = restriction
        self._paused: set[str] = set()
        """Kinds of table stores that are paused; `*` for all."""
        self._epoch, self._again_at = -1, 0.0

    def is_due(self) -> bool:
        """Return whether a record may wait although nothing has woken this worker."""
        return self._tables.is_due()

    def work(self) -> bool:
        """Process one record, if one waits. Return whether there was one."""
        if self._epoch != self._control.epoch or time.monotonic() >= self._again_at:
            # The claims of table stores are the application's statements and do not check pauses. A
            # new pause changes the epoch, as a new job does.
            self._epoch, self._again_at = self._control.epoch, time.monotonic() + self._poll
            self._paused = {row[0] for row in self._session.run("control/find_pauses")}
        return self._tables.work(self._admits)

    def _admits(self, kind: str) -> bool:
        return self._paused.isdisjoint((kind, "*")) and self._restriction.admits(kind)
