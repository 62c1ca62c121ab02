"""Copies the progress of running jobs from the status boards to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from jobherd.workers.ipc.current_work import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.database.connection import Session
    from jobherd.workers.ipc.status_board import StatusBoard


class ProgressCopy:
    """Writes what has changed since the last copy."""

    def __init__(self, session: Session, boards: Sequence[StatusBoard]) -> None:
        self._session = session
        self._boards = boards
        self._written: dict[int, tuple[int, int, bytes]] = {}
        """What was written last, by the number of the status board."""

    def write(self) -> None:
        """Write the progress of all running jobs that has changed."""
        jobs: list[int] = []
        tokens: list[int] = []
        progresses: list[str] = []
        for number, board in enumerate(self._boards):
            found = _progress_on(board)
            if found is None or self._written.get(number) == found:
                continue
            self._written[number] = found
            jobs.append(found[0])
            tokens.append(found[1])
            progresses.append(found[2].decode())
        if jobs:
            self._session.run("maintenance/write_progress", {"jobs": jobs, "tokens": tokens, "progresses": progresses})


def _progress_on(board: StatusBoard) -> tuple[int, int, bytes] | None:
    """Return job, token and progress of the job on a status board.

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
    return before.job, before.token, text
