"""Runs one job: shows it on the status board, calls its handler with a time limit, returns its outcome.

User code of a job runs only in `_call` here and in `batch.py`, and only while `interrupts.open` is
set: the handler, the reading of its payload, and, in `judge.py`, the description of what it raised.
A handler can end this process only by a signal, a crash or `os._exit`: every exception becomes an
outcome. This module writes to no database. A job that requests its own transaction gets it from
`transaction.py`, which then also settles the job.
"""

from __future__ import annotations

import logging
import os
import time
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Final

from jobherd.handlers._run.call import call, call_in_transaction
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.dispositions import JobTimeout, is_interruption
from jobherd.handlers._run.job import FOR_EVER, Job, ignore_entry
from jobherd.handlers._values.outcome import OK, Outcome, Raised
from jobherd.workers.ipc.counters import OUTCOME_NUMBER
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.process.interruptions import JobLost
from jobherd.workers.process.title import Title
from jobherd.workers.run.arguments import NO_JOB, bind_arguments
from jobherd.workers.run.durations import SHORT, Durations
from jobherd.workers.run.finish import finish
from jobherd.workers.run.job_kinds import job_kinds
from jobherd.workers.run.judge import Unreadable, exception_of, judge
from jobherd.workers.run.progress import ProgressReport
from jobherd.workers.run.recorder import Recorder
from jobherd.workers.run.usage import LONG, UsageMeter
from jobherd.workers.system.failpoints import armed, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSettings
    from jobherd.workers.run.hooks import HookCaller
    from jobherd.workers.run.job_kinds import JobKind
    from jobherd.workers.run.output import Output
    from jobherd.workers.run.transaction import Transactions

_log = logging.getLogger("jobherd.execute")

LONG_AFTER: Final = 0.25
"""Seconds of run time until the process title shows a job whose kind was shorter than SHORT lately.
A user cannot read the title of a job of a millisecond, and on an idle machine writing it delays the
job's start by 20 us.
"""


class Executor:
    """Runs jobs, one at a time.

    handlers: by kind. numbers: of kinds on the status board. hooks: the loaded hooks.
    running: the running job, for log lines.
    shares_claim: whether the claim of the running job holds other jobs.
    committed: whether the last job is already settled, by its transaction. The reader resets it.
    is_released: whether the supervisor releases the unstarted jobs of a claim, by its token.
    durations: how long jobs took lately.
    recorder: records the ends of attempts. progress: what the running job has reported.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[str, AnyHandler],
        numbers: Mapping[str, int],
        board: StatusBoard,
        control: ControlBlock,
        interrupts: Interrupts,
        transactions: Transactions,
        settings: ChildSettings,
        title: Callable[[str], None],
        hooks: HookCaller,
        output: Output | None = None,
    ) -> None:
        self.running: JobRow | None = None
        self.committed = False
        self.shares_claim = False
        self.is_released: Callable[[int], bool] = lambda _token: False
        self.sizes = {kind: one.policy.batch for kind, one in handlers.items() if one.policy.batch is not None}
        """The number of jobs per call, by kind, for batch handlers."""
        alone = {kind for kind, handler in handlers.items() if handler.policy.transactional}
        self.durations = Durations(alone, self.sizes)
        self.kinds = job_kinds(handlers, numbers, hooks)
        self.recorder = Recorder(self.kinds, board, settings)
        self._logs_all = self.recorder.job_log.is_all
        self.usage = UsageMeter()
        self.progress = ProgressReport(board, interrupts)
        self._output = output
        self._started = 0.0
        self._transactions = transactions
        transactions.executor = self
        self._hooks = hooks
        self._board = board
        self._control = control
        self._interrupts = interrupts
        self.title = Title(title)
        interrupts.on_long = self._show_job
        self.clock = time.monotonic
        """The clock before any job ran: a job may replace it, and the database rejects an end before the start."""

    def execute(self, row: JobRow, *, claimed_at: float, shares_claim: bool = False) -> Finished | None:
        """Run one job and return its outcome, or None if its claim was lost: there is nothing to record.

        claimed_at: monotonic time at which the answer to the claim arrived.
        shares_claim: its claim holds other jobs, so the supervisor may have revoked it. Then the
        job does not start.
        """
        kind = self.kinds.get(row.kind)
        started = time.monotonic()
        if kind is None or (row.good_for is not None and started - claimed_at >= row.good_for):
            return self.recorder.skip(row, kind, started, claimed_at)
        most = kind.max_attempts if row.max_attempts is None else row.max_attempts
        timeout = kind.timeout if row.timeout is None else row.timeout
        deadline = started + timeout
        self.shares_claim = shares_claim
        if not self._announce(row, kind, most, started, deadline):
            return self.recorder.unstarted(row, cancelled=False)
        if row.attempts == 1:
            self._board.tally.count_wait(max(0.0, row.waited + started - claimed_at))
        before = self.durations.by_kind.get(row.kind, FOR_EVER)
        if before >= SHORT:
            self._show_job()
        job = self._job(row, most, deadline) if kind.takes_job else NO_JOB
        long_at = started + LONG_AFTER if before < SHORT else FOR_EVER
        self._interrupts.enter(row.id, deadline, timeout, self._control if kind.exclusive else None, long_at)
        # Context variables that a job sets, mostly ids for log lines, must not leak into the next one.
        context = copy_context()
        return self.end(row, kind, job, context, started, self._call(row, kind, job, context))

    def end(  # noqa: PLR0917 - as in `finish`
        self, row: JobRow, kind: JobKind, job: Job, context: Context, started: float, ending: object
    ) -> Finished | None:
        """Judge and count the attempt that has just ended, and return as `execute`. ending: as from `_call`."""
        interrupts, most = self._interrupts, kind.max_attempts if row.max_attempts is None else row.max_attempts
        before = self.durations.by_kind.get(row.kind, FOR_EVER)
        ended = self.clock()
        if ended < started:  # noqa: PLR1730  # a call of max() costs a hundredth of a job that does nothing
            ended = started
        if armed:
            reach("job.ended")
        if self._transactions.used:
            row = self.running or row  # A step can have begun the count of attempts again.
        outcome = OK if ending is None else judge(interrupts, ending, kind.handler, attempt=row.attempts, most=most)
        if self._transactions.used:
            outcome = self._conclude(row, kind, outcome, most)
        interruption = interrupts.raised
        if kind.hooks is not None:
            context.run(self._hooks.call_end_hooks, kind.hooks, job, outcome, exception_of(ending))
        ending = None  # It may hold the frames of the handler.
        interrupts.leave()
        self.running = None
        if isinstance(interruption, JobLost):
            return None
        ran = ended - started
        if before < SHORT and self.title.shown == "idle":
            self.title.show("short jobs")
        self.durations.by_kind[row.kind] = ran if before == FOR_EVER else before + (ran - before) / 4
        output, log = self._output, None
        # Detecting printed output costs a system call. A job that is short and not alone in its
        # claim is checked only by flags that cost nothing.
        if output is not None and (output.dirty or ((ran >= LONG or not self.shares_claim) and output.is_pending())):
            log = output.take({"job": row.id, "kind": row.kind, "attempt": row.attempts})
        self._board.tally.count(
            kind.number, OUTCOME_NUMBER[outcome.label], ran, timeout=isinstance(interruption, JobTimeout)
        )
        if outcome.code is not None or self._logs_all:
            self.recorder.note(row, kind, outcome, most, ran)
        usage = self.usage.take(ended, ran) if ended - self.usage.at >= LONG else None
        progress = self.progress.latest() if self.progress.exists else None
        return finish(row, kind, outcome, ran, ended, usage, progress, log)

    # -- the steps

    def _announce(self, row: JobRow, kind: JobKind, most: int, started: float, deadline: float) -> bool:
        """Put the job on the status board. Return false if its claim was revoked: it must not start."""
        board, progress = self._board, self.progress
        if progress.exists:
            progress.clear()
        progress.encrypts = kind.encrypts
        board.say_running(
            self.recorder.child, row.token, row.id, kind.number, row.attempts, most, row.crashes, started, deadline
        )
        if armed:
            reach("job.announced")
        if self.shares_claim:
            # Race: the supervisor revokes, then reads what is announced. This worker announces,
            # then reads what is revoked. So at least one of the two sees the other.
            barrier()
            if self.is_released(row.token):
                self.recorder.withdraw(row)
                return False
        board.count_started(row.id)
        if armed:
            reach("job.started")
        self.running = row
        self._started = started
        return True

    def _call(self, row: JobRow, kind: JobKind, job: Job, context: Context) -> object:
        """Call the handler and return its result, or Raised, or Unreadable."""
        interrupts, fits = self._interrupts, False
        ending: object
        # An interrupt can be raised at any point between these two assignments, and nowhere else:
        # see process/interrupt.py.
        try:
            interrupts.open = True
            if interrupts.pending:
                interrupts.check()
            arguments = bind_arguments(row, kind, job)
            fits = True
            step = call if kind.hooks is None else kind.hooks.call
            if kind.transactional:
                ending = context.run(call_in_transaction, self._transactions, step, kind.handler, job, arguments)
            else:
                ending = context.run(step, kind.handler, job, arguments)
            interrupts.open = False
        except BaseException as raised:
            interrupts.open = False
            ending = Raised(raised) if fits or is_interruption(raised) else Unreadable(raised)
        if not interrupts.here[0]:
            # A copy that the handler has forked and that returned here: the job, the status board
            # and the session are not its own.
            os._exit(0)
        try:
            return ending
        finally:
            ending = None  # Its traceback refers to this frame, and would outlive the job by this cycle.

    def _conclude(self, row: JobRow, kind: JobKind, outcome: Outcome, most: int) -> Outcome:
        """End the job's own transaction and return the outcome of the job."""
        # Otherwise a deadline that passes now would send a signal a thousand times a second to no
        # job.
        self._interrupts.leave()
        transactions = self._transactions
        self.durations.alone.add(row.kind)
        concluded = transactions.conclude(
            outcome,
            lambda problem: outcome_of(
                Raised(problem), policy=kind.handler.policy, attempt=row.attempts, max_attempts=most
            ),
        )
        self.committed, transactions.committed = transactions.committed, False
        if not self.committed or concluded.label == "suspended":
            return concluded
        if not kind.transactional and concluded is not OK:
            _log.warning(
                "the job's transaction has completed it, so the later result or error of the handler is dropped: %s",
                (None if kind.encrypts else concluded.error) or "it returned a value; set `result` of the transaction",
            )
        return OK

    def describe(self, outcome: Outcome) -> Finished:
        """Return what to record for the running job if it ends now with this outcome."""
        assert self.running is not None
        ended = time.monotonic()
        log = None if self._output is None else self._output.peek()
        ran = ended - self._started
        usage = self.usage.take(ended, ran) if ended - self.usage.at >= LONG else None
        progress = self.progress.latest()
        return finish(self.running, self.kinds[self.running.kind], outcome, ran, ended, usage, progress, log)

    # -- what the handler gets

    def _job(self, row: JobRow, most: int, deadline: float) -> Job:
        return Job(
            id=row.id,
            kind=row.kind,
            queue=row.queue,
            priority=row.priority,
            attempt=row.attempts,
            max_attempts=most,
            crashes=row.crashes,
            token=row.token,
            created=row.created_at,
            run=row.run_at,
            deadline=deadline,
            resources=self._hooks.child.resources,
            on_progress=self.progress.publish,
            on_entry=ignore_entry if self._output is None else self._output.enter,
            on_cancelled=self._interrupts.is_cancelled,
            transaction_host=self._transactions,
        )

    def _show_job(self) -> None:
        if (row := self.running) is not None:
            self.title.show(f"{row.kind} #{row.id}")
