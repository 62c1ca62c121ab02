"""Counts and notes ended attempts, and builds the outcomes of jobs that were claimed and did not run.

Nothing here writes to the database. It runs no user code, except for the description of an
exception in `reject`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.handlers._run.unrunnable import unknown_kind, unstartable
from jobherd.handlers._values.outcome import EXPIRED
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.workers.ipc.counters import OUTCOME_NUMBER
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.job.finished import CANCELLED_BEFORE, RELEASED, Finished
from jobherd.workers.run.finish import days_kept
from jobherd.workers.run.job_log import JobLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._values.outcome import Outcome
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.spec import ChildSettings
    from jobherd.workers.run.job_kinds import JobKind


class Recorder:
    """Records the ends of a worker's attempts.

    job_log: holds the attempts that ended and are not logged yet.
    child: the number that the database gave this worker.
    """

    def __init__(self, kinds: Mapping[str, JobKind], board: StatusBoard, settings: ChildSettings) -> None:
        self.job_log = JobLog(settings.log_jobs)
        self.child = 0
        self._kinds = kinds
        self._board = board
        self._settings = settings

    def note(self, row: JobRow, kind: JobKind, outcome: Outcome, most: int, ran: float) -> None:
        """Count the error code of an attempt, if it has one, and note the attempt for the log."""
        if outcome.code is not None:
            self._board.tally.count_error(kind.number, outcome.code)
        self.job_log.note(row, outcome, most, ran, hidden=kind.hides_errors)

    def unstarted(self, row: JobRow, *, cancelled: bool) -> Finished:
        """Return the release of a job that was claimed and not started."""
        outcome = CANCELLED_BEFORE if cancelled else RELEASED
        return self.unrun(row, outcome, self._kinds.get(row.kind), ended=0.0)

    def skip(self, row: JobRow, kind: JobKind | None, started: float, claimed_at: float) -> Finished:
        """Return the outcome of a job that has expired, or whose kind no loaded module declares."""
        if row.good_for is not None and started - claimed_at >= row.good_for:
            return self.unrun(row, EXPIRED, kind, ended=started)
        age = max(row.run_at, row.created_at) + row.waited - row.created_at
        outcome = unknown_kind(row.kind, age=age, limit=self._settings.unknown_for, delay=self._settings.unknown_delay)
        return self.unrun(row, outcome, None, ended=started)

    def reject(self, row: JobRow, problem: Exception) -> Finished:
        """Return the failure of a job whose row raised an error before its handler was called.

        Otherwise such a row would end every worker that claims it.
        """
        message, trace = describe_exception(problem)
        self.withdraw(row)
        return self.unrun(row, unstartable(message, trace), self._kinds.get(row.kind), ended=time.monotonic())

    def unrun(self, row: JobRow, outcome: Outcome, kind: JobKind | None, *, ended: float) -> Finished:
        """Count a job that did not run and return what to write to the database."""
        number = 0 if kind is None else kind.number
        self._board.tally.count_unrun(number, OUTCOME_NUMBER[outcome.label])
        if outcome.code is not None:
            self._board.tally.count_error(number, outcome.code)
            hidden = kind is not None and kind.hides_errors
            self.job_log.note(row, outcome, row.max_attempts or 0, 0.0, hidden=hidden)
        finished = Finished(row.id, outcome, ended=ended)
        return finished if kind is None else finished._replace(keep=days_kept(row, kind.keep_failed))

    def withdraw(self, row: JobRow) -> None:
        """Remove an announced job from the status board.

        If this process dies before it has released the job, the job is not to blame. Invariant: the
        claim stays named. The supervisor of a dead process looks for the claim's outcomes under
        that token.
        """
        self._board.say(CurrentWork(Phase.SETTLING, self.child, row.token))
