"""Reads the outcomes on a child's status board that may not be in the database yet."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard


def finished_of(board: StatusBoard, token: int) -> list[Finished]:
    """Return the outcomes of that claim in a board's outcome buffer."""
    found = [Finished(job, OK, ran, ended, keep) for job, ran, ended, keep in board.outcomes.finished(token)]
    for entry in board.outcomes.entries(token):
        # nothing that a child may have written can crash the supervisor
        with suppress(ValueError, TypeError, KeyError):
            found.append(Finished.from_entry(entry))
    return found


def outcomes_of(board: StatusBoard) -> list[tuple[int, list[Finished]]]:
    """Return the outcomes in a board's outcome buffer, by claim."""
    return [(claim, finished_of(board, claim)) for claim in board.outcomes.claims()]
