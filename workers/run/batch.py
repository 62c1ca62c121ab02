"""Batch handlers: runs several jobs of one kind in one call, and decides the outcome of each.

Invariant: no job may decide over another. A job that has crashed a process, or is in its last
attempt, is called alone. An exception, a timeout or a crash is recorded for every job of the call,
but it never costs another job its last attempt. Canceling one job of a call does not interrupt the
others. This module writes to no database.
"""

from __future__ import annotations

import os
import time
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobherd.handlers._define.batch import BatchSignature
from jobherd.handlers._define.binding import WHOLE
from jobherd.handlers._run.call import call
from jobherd.handlers._run.dispositions import JobTimeout
from jobherd.handlers._run.transaction import BATCH_CALL
from jobherd.handlers._values.outcome import EXPIRED, OK, Outcome, Raised
from jobherd.workers.ipc.counters import OUTCOME_NUMBER
from jobherd.workers.ipc.current_work import CurrentWork, Phase, Reason
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.process.interruptions import JobLost
from jobherd.workers.run.arguments import bind_arguments
from jobherd.workers.run.executor import Executor
from jobherd.workers.run.finish import finish
from jobherd.workers.run.job_kinds import JobKind, most_attempts
from jobherd.workers.run.judge import Unreadable, divide, exception_of, judge
from jobherd.workers.run.progress import encode_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._run.job import Job
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.job.row import JobRow


@dataclass(slots=True)
class _Call:
    """One call of a batch handler."""

    kind: JobKind
    rows: list[JobRow]
    started: float
    jobs: list[Job] = field(default_factory=list)
    called: list[Job] = field(default_factory=list)
    """Those that the handler got."""
    refused: dict[int, Raised | Unreadable] = field(default_factory=dict)
    """By id, those whose payload or `before_job` hook raised, so that the handler did not get them."""
    progress: dict[int, str] = field(default_factory=dict)
    """What each job has reported, by id."""


class BatchExecutor(Executor):
    """Runs jobs one at a time, or several of one kind in one call."""

    def execute_together(
        self, rows: list[JobRow], *, claimed_at: float, shares_claim: bool = False
    ) -> list[Finished] | None:
        """Run jobs of one kind in one call and return their outcomes.

        Returns None if the claim was lost meanwhile.
        claimed_at: monotonic time at which the answer to the claim arrived. shares_claim: as for
        `execute`.
        """
        kind, started = self.kinds[rows[0].kind], time.monotonic()
        rows, finished = self._sort_out(rows, kind, started, claimed_at)
        if not rows:
            return finished
        batch = _Call(kind, rows, started)
        timeout = min(kind.timeout if row.timeout is None else row.timeout for row in rows)
        deadline = started + timeout
        self.shares_claim = shares_claim
        if not self._announce_all(batch, deadline, claimed_at):
            return finished + [self.recorder.unstarted(row, cancelled=False) for row in rows]
        batch.jobs = [self._job_of_call(row, batch, deadline) for row in rows]
        interrupts = self._interrupts
        interrupts.enter(rows[0].id, deadline, timeout, self._control if kind.exclusive else None)
        interrupts.together = len(rows) > 1
        ending = self._call_all(batch)
        ended = max(self.clock(), started)
        endings = self._divide(batch, ending)
        outcomes = [self._outcome(batch, row, endings.get(row.id)) for row in rows]
        interruption = interrupts.raised
        if kind.hooks is not None:
            for job, outcome in zip(batch.jobs, outcomes, strict=True):
                self._hooks.call_end_hooks(kind.hooks, job, outcome, exception_of(endings.get(job.id)))
        ending = endings = {}  # They may hold the frames of the handler.
        batch.refused.clear()
        interrupts.leave()
        interrupts.together = False
        self.running = None
        if isinstance(interruption, JobLost):
            return None
        timed_out = isinstance(interruption, JobTimeout)
        return finished + self._record_all(batch, outcomes, ended, timed_out=timed_out)

    # -- the steps

    def _sort_out(
        self, rows: list[JobRow], kind: JobKind, started: float, claimed_at: float
    ) -> tuple[list[JobRow], list[Finished]]:
        """Return the jobs to call, and the outcomes of those that expired or were canceled meanwhile."""
        runnable: list[JobRow] = []
        expired: list[Finished] = []
        cancelled: list[Finished] = []  # while the call waited for more jobs
        for row in rows:
            if row.good_for is not None and started - claimed_at >= row.good_for:
                expired.append(self.recorder.unrun(row, EXPIRED, kind, ended=started))
            elif self._interrupts.pending.get(row.id) is Reason.CANCEL:
                cancelled.append(self.recorder.unstarted(row, cancelled=True))
            else:
                runnable.append(row)
        return runnable, expired + cancelled

    def _announce_all(self, batch: _Call, deadline: float, claimed_at: float) -> bool:
        """Put the jobs on the status board. Return false if their claim was revoked: none must start."""
        board, rows, first = self._board, batch.rows, batch.rows[0]
        now = CurrentWork(
            Phase.TOGETHER if len(rows) > 1 else Phase.RUNNING, self.recorder.child, first.token, first.id,
            batch.kind.number, first.attempts, most_attempts(batch.kind, first), first.crashes, batch.started, deadline,
        )  # fmt: skip
        others = [(row.id, row.attempts, most_attempts(batch.kind, row), row.crashes) for row in rows[1:]]
        board.say_together(now, others)
        if self.shares_claim:
            barrier()  # as in `execute`
            if self.is_released(first.token):
                self.recorder.withdraw(first)
                return False
        for row in reversed(rows):
            board.count_started(row.id)  # The first one last: it is the job that the status board names.
            if row.attempts == 1:
                board.tally.count_wait(max(0.0, row.waited + batch.started - claimed_at))
        self.running = first
        others_shown = "" if len(rows) == 1 else f" and {len(rows) - 1} more"
        self.title.show(f"{first.kind} #{first.id}{others_shown}")
        return True

    def _call_all(self, batch: _Call) -> object:
        """Call the handler and return its result, or Raised."""
        interrupts, kind, rows = self._interrupts, batch.kind, batch.rows
        signature = kind.handler.signature
        assert isinstance(signature, BatchSignature)
        payloads: list[object] = []
        ending: object = None
        # As in `execute`: an interrupt can be raised at any point between these two assignments.
        try:
            interrupts.open = True
            if interrupts.pending and (
                not interrupts.together or interrupts.pending.get(rows[0].id) is not Reason.CANCEL
            ):
                interrupts.check()
            for row, job in zip(rows, batch.jobs, strict=True):
                fits = False
                try:
                    payload = bind_arguments(row, kind, job)[WHOLE]
                    fits = True
                    for hook in () if kind.hooks is None else kind.hooks.before:
                        hook.call_with(job)
                except Exception as problem:
                    batch.refused[row.id] = Raised(problem) if fits else Unreadable(problem)
                else:
                    payloads.append(payload)
                    batch.called.append(job)
            if batch.called:
                ending = copy_context().run(call, kind.handler, batch.called, signature.arguments(payloads))
            interrupts.open = False
        except BaseException as raised:
            interrupts.open = False
            ending = Raised(raised)
        if interrupts.forked:
            os._exit(0)  # as in `execute`
        try:
            return ending
        finally:
            ending = None  # as in `Executor._call`

    def _divide(self, batch: _Call, ending: object) -> dict[int, object]:
        """Return how each job ended, by id. Jobs that succeeded without a result may be left out."""
        if len(batch.called) + len(batch.refused) < len(batch.rows):
            # It was raised while the payloads were read, so the handler was not called.
            return dict.fromkeys((row.id for row in batch.rows), ending) | batch.refused
        found = {} if ending is None else divide(self._interrupts, ending, [job.id for job in batch.called])
        return found | batch.refused

    def _outcome(self, batch: _Call, row: JobRow, ending: object) -> Outcome:
        if ending is None:
            return OK
        most = most_attempts(batch.kind, row)
        return judge(self._interrupts, ending, batch.kind.handler, attempt=row.attempts, most=most)

    def _record_all(self, batch: _Call, outcomes: list[Outcome], ended: float, *, timed_out: bool) -> list[Finished]:
        kind, first = batch.kind, batch.rows[0]
        ran = ended - batch.started
        self.durations.add(first.kind, ran)
        # Usage of the whole call: it is recorded with its first job, as the captured output is.
        usage, log = self.usage.take(ended, ran), None
        if self._output is not None and self._output.is_pending():
            log = self._output.take({"job": first.id, "kind": first.kind})
        recorded = []
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            most, progress = most_attempts(kind, row), batch.progress.get(row.id)
            self._board.tally.count(kind.number, OUTCOME_NUMBER[outcome.label], ran, timeout=timed_out)
            self.recorder.note(row, kind, outcome, most, ran)
            recorded.append(finish(row, kind, outcome, ran, ended, usage, progress, log))
            usage = log = None
        return recorded

    def _job_of_call(self, row: JobRow, batch: _Call, deadline: float) -> Job:
        """Return a job of a call.

        Its progress is recorded with its outcome, because the status board holds that of only one
        job.
        """
        job = self._job(row, most_attempts(batch.kind, row), deadline)
        job.transaction_host = BATCH_CALL
        pending = self._interrupts.pending
        job.on_progress = _progress_of(row.id, batch)
        job.on_cancelled = lambda: pending.get(row.id) is Reason.CANCEL or self._interrupts.is_cancelled()
        return job


def _progress_of(job: int, batch: _Call) -> Callable[[float, str, object], None]:
    def publish(fraction: float, note: str, data: object) -> None:
        batch.progress[job] = encode_progress(fraction, note, data, encrypts=batch.kind.encrypts).decode()

    return publish
