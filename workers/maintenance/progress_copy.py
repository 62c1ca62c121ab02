"""Copies the progress of running jobs from the status boards to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.workers.ipc.changed_progress import ChangedProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.database.connection import Session
    from jobherd.workers.ipc.status_board import StatusBoard


class ProgressCopy:
    """Writes what has changed since the last copy."""

    def __init__(self, session: Session, boards: Sequence[StatusBoard]) -> None:
        self._session = session
        self._changed = ChangedProgress(boards)

    def write(self) -> None:
        """Write the progress of all running jobs that has changed."""
        if found := self._changed.find():
            jobs, tokens, texts = map(list, zip(*found, strict=True))
            self._session.run("maintenance/write_progress", {"jobs": jobs, "tokens": tokens, "progresses": texts})
