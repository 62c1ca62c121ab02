"""Chooses the jobs of a claim that a batch handler gets in one call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobherd.workers.run.job_kinds import JobKind, most_attempts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jobherd.workers.job.row import JobRow

_log = logging.getLogger("jobherd.worker")


class Gathering:
    """Gathers the jobs of one call.

    suspects: jobs that are called alone, because an error occurred before a call that included them.
    """

    def __init__(self, kinds: Mapping[str, JobKind], sizes: Mapping[str, int]) -> None:
        self.suspects: set[int] = set()
        self._kinds = kinds
        self._sizes = sizes
        skipped = [kind for kind in sizes if (hooks := kinds[kind].hooks) is not None and hooks.around]
        if skipped:
            _log.warning(
                "middleware is for one job at a time and not called around these batch handlers: %s", ", ".join(skipped)
            )

    def gather(self, batch: list[JobRow], place: int, interrupted: Collection[int]) -> list[JobRow]:
        """Take the jobs of one call out of a claim and return them, the job at `place` first.

        interrupted: canceled jobs stay in the claim, because they are not called at all.
        """
        first = batch[place]
        size = self._sizes[first.kind]
        if size == 1 or self.is_called_alone(first):
            return [first]
        found: list[JobRow] = [first]
        others: list[JobRow] = []
        for row in batch[place + 1 :]:
            joins = (
                len(found) < size
                and row.kind == first.kind
                and row.id not in interrupted
                and not self.is_called_alone(row)
            )
            (found if joins else others).append(row)
        batch[place + 1 :] = others
        return found

    def is_called_alone(self, row: JobRow) -> bool:
        """Return whether a job must not share a call.

        That holds if it has crashed a process, if this attempt is its last one and not its first,
        or if it is a suspect.
        """
        last = row.attempts >= most_attempts(self._kinds[row.kind], row)
        return bool(row.crashes) or (row.attempts > 1 and last) or row.id in self.suspects
