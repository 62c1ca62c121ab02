"""Finds the progress of running jobs on the status boards that has changed since the last check."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

from jobherd.workers.ipc.current_work import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.ipc.status_board import StatusBoard


class Progress(NamedTuple):
    """The progress of a running job. text: a JSON document."""

    job: int
    token: int
    text: str


class ChangedProgress:
    """Remembers what it has returned, by status board."""

    def __init__(self, boards: Sequence[StatusBoard]) -> None:
        self._boards = boards
        self._returned: dict[int, Progress] = {}

    def find(self) -> list[Progress]:
        """Return the progress of each running job that has reported some since it was returned last."""
        changed = []
        for number, board in enumerate(self._boards):
            found = _progress_on(board)
            if found is not None and self._returned.get(number) != found:
                self._returned[number] = found
                changed.append(found)
        return changed


def _progress_on(board: StatusBoard) -> Progress | None:
    """Return the progress of the job on a status board.

    None if no job runs, or if it changed during the read.
    """
    before = board.now()
    if before is None or before.phase is not Phase.RUNNING or not before.job or board.tally.policy(before.kind).table:
        return None  # A record's number may also be a job's, which would then show this progress.
    text = board.progress()
    after = board.now()
    if not text or after is None or (after.job, after.token) != (before.job, before.token):
        return None
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # One invalid document would keep all others out of the database.
    return Progress(before.job, before.token, text.decode())
