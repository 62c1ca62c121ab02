"""Decides which rows of a job a watcher gets: the first one, and each that shows something new.

Must not wait or use the database: threads and asyncio share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd.handlers._enqueue import statements
from jobherd.handlers._policy.durations import Duration, positive
from jobherd.handlers._values.outcome import FINAL_STATES

if TYPE_CHECKING:
    from jobherd.handlers._enqueue.statements import Statement

_SHOWN = ("state", "attempts", "progress", "error")


class JobWatch:
    """What has been seen of a job.

    Query `statement`, pass the row to `is_news`, and wait `every` seconds until `over`.
    """

    def __init__(self, job_id: int, every: Duration) -> None:
        self.statement: Statement[dict[str, Any] | None] = statements.show_job(job_id)
        self.every = positive(every, field="every")
        self.over = False
        self._id = job_id
        self._seen: list[Any] | None = None

    def is_news(self, row: dict[str, Any] | None) -> bool:
        """Return whether the row shows something new.

        Raises LookupError if the job does not exist, or does not exist any more.
        """
        if row is None:
            message = f"job {self._id} not found" + ("" if self._seen is None else " any more: nothing of it was kept")
            raise LookupError(message)
        seen, self._seen = self._seen, [row[name] for name in _SHOWN]
        self.over = row["state"] in FINAL_STATES
        return seen != self._seen
