"""Runs one job: finds its handler, decodes its payload, calls it with a time limit, judges the outcome.

User code of a job runs only in this module and in `batch.py`, and only while `interrupts.open` is
set: the handler, the reading of its payload, and the description of what it raised (an exception's
`__str__` is user code too). A handler can end this process only by a signal, a crash or `os._exit`:
every exception becomes an outcome. This module writes to no database. A job that requests its own
transaction gets it from `transaction.py`, which then also settles the job.
"""

from __future__ import annotations

import base64
import logging
import os
import resource
import time
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from jobherd.handlers._run.call import call
from jobherd.handlers._run.classify import outcome_of, unjudged, unknown_kind, unreadable, unstartable
from jobherd.handlers._run.dispositions import JobCancelled, JobTimeout, is_interruption
from jobherd.handlers._run.job import FOR_EVER, Job, tell_nobody
from jobherd.handlers._values.encryption import KeyMissingError, open_bytes, open_payload, ring, seal_log, seal_outcome
from jobherd.handlers._values.outcome import EXPIRED, KEY_MISSING, OK, Outcome, Raised
from jobherd.handlers._values.payload import decode_payload
from jobherd.handlers._values.sanitize import describe_exception, sanitize
from jobherd.workers.ipc.counters import OUTCOMES
from jobherd.workers.ipc.record import barrier
from jobherd.workers.ipc.status_board import CurrentWork, Phase
from jobherd.workers.job.finished import CANCELLED_BEFORE, HANDED_BACK, Finished, with_class
from jobherd.workers.process.interrupt import JobLost
from jobherd.workers.run.job_log import JobLog
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.hook_calls import JobHooks
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSettings
    from jobherd.workers.run.hooks import Caller
    from jobherd.workers.run.output import Output
    from jobherd.workers.run.transaction import Transactions

_log = logging.getLogger("jobherd.execute")

LONG: Final = 0.005
"""Seconds of run time from which an attempt's resource usage is measured."""
JUDGING: Final = 5.0
"""Seconds to turn the end of a handler into an outcome.

Results and exceptions may run user code.
"""
LEAST: Final = 0.00005
"""Least number of seconds that a job counts for, including its settlement."""
SHORT: Final = 0.05
LONG_AFTER: Final = 0.25
"""Seconds of run time until the process title shows a job whose kind was shorter than SHORT lately.
A user cannot read the title of a job of a millisecond, and on an idle machine writing it delays the
job's start by 20 us.
"""
MOST_PROGRESS: Final = 2048
_NUMBER: Final = {label: number for number, label in enumerate(OUTCOMES)}
_NO_JOB: Final = Job(id=0, kind="")


class _Kind(NamedTuple):
    """What every job of a kind needs to know about its handler, looked up once."""

    handler: AnyHandler
    number: int
    """Number of the kind on the status board."""
    timeout: float
    max_attempts: int
    takes_job: bool
    exclusive: bool
    transactional: bool
    keep_completed: int
    keep_failed: int
    """Days."""
    hooks: JobHooks | None
    takes_bytes: bool
    seals: bool
    """The kind encrypts its payloads, results, errors and logs."""
    seals_only: bool
    hides: bool
    """Log lines must not quote its errors: parts of the payload are encrypted or redacted."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload could not be decoded, or does not fit the handler's parameters."""

    problem: BaseException


class Executor:
    """Runs jobs, one at a time.

    handlers: by kind. numbers: of kinds on the status board. hooks: the loaded hooks.
    running: the running job, for log lines.
    alone: kinds that are claimed alone, because their jobs have their own transactions.
    among: whether the claim of the running job holds other jobs.
    is_released: whether the supervisor releases the unstarted jobs of a claim, by its token.
    committed: whether the last job is already settled, by its transaction. The reader resets it.
    job_log: holds the attempts that ended and are not logged yet.
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
        hooks: Caller,
        output: Output | None = None,
    ) -> None:
        self.job_log = JobLog(settings.log_jobs)
        self.running: JobRow | None = None
        self.committed = False
        self.is_released: Callable[[int], bool] = _never
        self.alone = {kind for kind, handler in handlers.items() if handler.policy.transactional}
        self._output = output
        self.among = False
        self._started = 0.0
        self._transactions = transactions
        transactions.executor = self
        self._kinds = {
            kind: _kind_of(handler, numbers.get(kind, 0), hooks.of_kind(kind)) for kind, handler in handlers.items()
        }
        self._hooks = hooks
        self._board = board
        self._control = control
        self._interrupts = interrupts
        self._settings = settings
        self._title = title
        self._shown = ""
        self._logs_all = self.job_log.is_all
        interrupts.on_long = self._show_job
        self._child = 0
        self._said = False
        self._clock = time.monotonic
        """The clock as it was before any job ran. A job may replace it, and the database rejects an
        attempt that ended before it began.
        """
        self._cpu = _cpu()
        self._cpu_at = time.monotonic()
        self._expected: dict[str, float] = {}
        self._sizes = {
            kind: handler.policy.batch for kind, handler in handlers.items() if handler.policy.batch is not None
        }
        """The number of jobs per call, by kind, for batch handlers."""

    def seat_child(self, child: int) -> None:
        """Set the number that the database gave this worker."""
        self._child = child

    def show(self, doing: str) -> None:
        """Show in the process title what this worker does."""
        if doing != self._shown:
            self._shown = doing
            self._title(doing)

    def look_at_clock(self) -> None:
        """Exclude the resource usage of this process until now from the next job."""
        self._cpu = _cpu()
        self._cpu_at = time.monotonic()

    def shares(self, longest: float) -> dict[str, float]:
        """Return the share of a claim of `longest` seconds that a job of each kind is expected to fill.

        Kinds that leave no room for another job are not included.
        """
        return {
            kind: max(seconds, LEAST) / longest
            for kind, seconds in self._expected.items()
            if seconds < longest and kind not in self.alone
        }

    def short(self) -> list[str]:
        """Return the kinds whose jobs were short lately in this worker."""
        return [kind for kind, seconds in self._expected.items() if seconds < SHORT]

    def expected(self, kind: str) -> float:
        """Return how many seconds jobs of a kind took lately in this worker; infinity for an unseen kind."""
        return self._expected.get(kind, FOR_EVER)

    def execute(self, row: JobRow, *, claimed_at: float, among: bool = False) -> Finished | None:
        """Run one job and return its outcome, or None if its claim was lost while it ran.

        In that case there is nothing to record.
        claimed_at: monotonic time at which the answer to the claim arrived.
        among: its claim holds other jobs, so the supervisor may have revoked it. Then the job does
        not start.
        """
        kind = self._kinds.get(row.kind)
        board, interrupts = self._board, self._interrupts
        started = time.monotonic()
        if row.good_for is not None and started - claimed_at >= row.good_for:
            return self._unrun(row, EXPIRED, kind, ended=started)
        if kind is None:
            age = max(row.run_at, row.created_at) + row.waited - row.created_at
            outcome = unknown_kind(
                row.kind, age=age, limit=self._settings.unknown_for, delay=self._settings.unknown_delay
            )
            return self._unrun(row, outcome, None, ended=started)

        handler, number = kind.handler, kind.number
        most = kind.max_attempts if row.max_attempts is None else row.max_attempts
        timeout = kind.timeout if row.timeout is None else row.timeout
        deadline = started + timeout
        if self._said:
            # Before the status board names this job, or it would show the progress of the previous
            # one.
            board.tell_progress(b"")
            self._said = False
        board.say_running(self._child, row.token, row.id, number, row.attempts, most, row.crashes, started, deadline)
        reach("job.announced")
        if among:
            # Race: the supervisor revokes, then reads what is announced. This worker announces,
            # then reads what is revoked. So at least one of the two sees the other.
            barrier()
            if self.is_released(row.token):
                self._forsake(row)
                return self.unstarted(row, cancelled=False)
        board.count_started(row.id)
        reach("job.started")
        if row.attempts == 1:
            board.tally.count_wait(max(0.0, row.waited + started - claimed_at))
        self.running = row
        before = self._expected.get(row.kind, FOR_EVER)
        short = before < SHORT
        if not short:
            self._show_job()
        job = self._job(row, most, deadline) if kind.takes_job else _NO_JOB
        transactions = self._transactions
        self.among, self._started = among, started
        interrupts.enter(
            row.id,
            deadline,
            timeout,
            self._control if kind.exclusive else None,
            started + LONG_AFTER if short else FOR_EVER,
        )
        fits = False
        # Context variables that a job sets, mostly ids for log lines, must not leak into the next
        # job.
        context = copy_context()
        ending: object
        # An interrupt can be raised at any point between these two assignments, and nowhere else:
        # see process/interrupt.py.
        try:
            interrupts.open = True
            if interrupts.told:
                interrupts.check()
            payload = decode_payload(row.payload)
            if kind.seals:
                payload = open_payload(payload, row.kind, only=kind.seals_only)
            if job is not _NO_JOB:
                job.payload = payload
            arguments = handler.binding.bind(payload)
            if row.extras is not None or kind.takes_bytes:
                given = hand_over(row.extras, job)
                if kind.seals:
                    given.payload_bytes = open_bytes(given.payload_bytes, row.kind)
                handler.signature.take_bytes(arguments, given.payload_bytes)
            fits = True
            step = call if kind.hooks is None else kind.hooks.call
            if kind.transactional:
                ending = context.run(transactions.call, step, handler, job, arguments)
            else:
                ending = context.run(step, handler, job, arguments)
            interrupts.open = False
        except BaseException as raised:
            interrupts.open = False
            ending = Raised(raised) if fits or is_interruption(raised) else Unreadable(raised)
        if not interrupts.here[0]:
            # A copy that the handler has forked and that returned here: the job, the status board
            # and the session are not its own.
            os._exit(0)
        ended = self._clock()
        if ended < started:  # noqa: PLR1730  # a call of max() costs a hundredth of a job that does nothing
            ended = started
        reach("job.ended")
        outcome = OK if ending is None else self._judge(ending, handler, row.attempts, most)
        if transactions.used:
            # Otherwise a deadline that passes now would send a signal a thousand times a second to
            # no job.
            interrupts.leave()
            outcome = self._conclude(row, kind, outcome, most)
        interruption = interrupts.raised
        if kind.hooks is not None:
            problem = (
                ending.exception
                if isinstance(ending, Raised)
                else ending.problem
                if isinstance(ending, Unreadable)
                else None
            )
            context.run(self._hooks.tell_end, kind.hooks, job, outcome, problem)
        ending = None
        interrupts.leave()
        self.running = None
        if isinstance(interruption, JobLost):
            return None
        ran = ended - started
        board.tally.count(number, _NUMBER[outcome.label], ran, timeout=isinstance(interruption, JobTimeout))
        if outcome.code is not None:
            board.tally.count_error(number, outcome.code)
            self.job_log.note(row, outcome, most, ran, hidden=kind.hides)
        elif self._logs_all:
            self.job_log.note(row, outcome, most, ran, hidden=kind.hides)
        if short and self._shown == "idle":
            self.show("short jobs")
        self._expected[row.kind] = ran if before == FOR_EVER else before + (ran - before) / 4
        output = self._output
        # Detecting printed output costs a system call. A job that is short and not alone in its
        # claim is checked only by flags that cost nothing.
        log = None
        if output is not None and (output.dirty or ((ran >= LONG or not among) and output.is_pending())):
            log = output.take({"job": row.id, "kind": row.kind, "attempt": row.attempts})
        return self._finish(row, kind, outcome, ran, ended, log)

    def _finish(  # noqa: PLR0917
        self, row: JobRow, kind: _Kind, outcome: Outcome, ran: float, ended: float, log: str | None
    ) -> Finished:
        if kind.seals:
            outcome, log = sealed(outcome, log, row)
        return Finished(
            row.id,
            outcome,
            ran,
            ended,
            kept(row, kind.keep_completed if outcome.label == "ok" else kind.keep_failed),
            with_class(self._usage(ended, ran) if ended - self._cpu_at >= LONG else None, outcome),
            self._board.progress().decode(errors="replace") or None if self._said else None,
            log=log,
        )

    def describe(self, outcome: Outcome) -> Finished:
        """Return what to record for the running job if it ends now with this outcome."""
        assert self.running is not None
        ended = time.monotonic()
        log = None if self._output is None else self._output.peek()
        return self._finish(self.running, self._kinds[self.running.kind], outcome, ended - self._started, ended, log)

    def _conclude(self, row: JobRow, kind: _Kind, outcome: Outcome, most: int) -> Outcome:
        """End the job's own transaction and return the outcome of the job."""
        transactions = self._transactions
        self.alone.add(row.kind)
        said = transactions.conclude(
            outcome,
            lambda problem: outcome_of(
                Raised(problem), policy=kind.handler.policy, attempt=row.attempts, max_attempts=most
            ),
        )
        self.committed, transactions.committed = transactions.committed, False
        if not self.committed:
            return said
        if not kind.transactional and said is not OK:
            _log.warning(
                "the job was completed by its transaction, and what came after it is not kept: %s",
                (None if kind.seals else said.error) or "it returned a value; set `result` of the transaction",
            )
        return OK

    def _show_job(self) -> None:
        if (row := self.running) is not None:
            self.show(f"{row.kind} #{row.id}")

    def _forsake(self, row: JobRow) -> None:
        """Remove an announced job from the status board.

        If this process dies before it has released the job, the job is not to blame. Invariant: the
        claim stays named. The supervisor of a dead process looks for the claim's outcomes under
        that token.
        """
        self._board.say(CurrentWork(Phase.SETTLING, self._child, row.token))

    def refuse(self, row: JobRow, problem: Exception) -> Finished:
        """Return the failure of a job whose row raised an error before its handler was called.

        Otherwise such a row would end every worker that claims it.
        """
        message, trace = describe_exception(problem)
        self._forsake(row)
        return self._unrun(row, unstartable(message, trace), self._kinds.get(row.kind), ended=time.monotonic())

    def unstarted(self, row: JobRow, *, cancelled: bool) -> Finished:
        """Return the release of a job that was claimed and not started."""
        return self._unrun(row, CANCELLED_BEFORE if cancelled else HANDED_BACK, self._kinds.get(row.kind), ended=0.0)

    def _unrun(self, row: JobRow, outcome: Outcome, kind: _Kind | None, *, ended: float) -> Finished:
        number = 0 if kind is None else kind.number
        self._board.tally.count_unrun(number, _NUMBER[outcome.label])
        if outcome.code is not None:
            self._board.tally.count_error(number, outcome.code)
            self.job_log.note(row, outcome, row.max_attempts or 0, 0.0, hidden=kind is not None and kind.hides)
        finished = Finished(row.id, outcome, ended=ended)
        return finished if kind is None else finished._replace(keep=kept(row, kind.keep_failed))

    def _judge(self, ending: object, handler: AnyHandler, attempt: int, most: int) -> Outcome:
        interrupts = self._interrupts
        interruption = interrupts.judge(JUDGING)
        try:
            interrupts.open = True
            if isinstance(ending, Unreadable):
                outcome = unreadable(ending.problem)
            else:
                outcome = outcome_of(
                    ending, policy=handler.policy, attempt=attempt, max_attempts=most, interruption=interruption
                )
            interrupts.open = False
        except BaseException:
            interrupts.open = False
            error = f"what the handler returned or raised could not be judged within {JUDGING:g} s"
            outcome = unjudged(ending, error, attempt=attempt, last=attempt >= most, interruption=interruption)
        interrupts.raised = interruption or interrupts.raised
        return outcome

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
            on_progress=self._progress,
            on_entry=tell_nobody if self._output is None else self._output.enter,
            on_cancelled=self._is_cancelled,
            doors=self._transactions,
        )

    def _is_cancelled(self) -> bool:
        return isinstance(self._interrupts.raised, JobCancelled)

    def _progress(self, fraction: float, note: str, data: object) -> None:
        if self._interrupts.forked:
            return
        record: dict[str, object] = {"fraction": fraction}
        if self.running is not None and self._kinds[self.running.kind].seals:
            note, data = "", None  # The status board and its copy in the database are read by people without keys.
        if note:
            record["note"] = note
        if data is not None:
            record["data"] = data
        self._said = True
        try:
            text = orjson.dumps(record)
        except (TypeError, ValueError, RecursionError):
            text = b"\\u0000"
        if len(text) > MOST_PROGRESS or b"\\u0000" in text:
            # A cut record would not be valid JSON, and one NUL would keep the progress of the whole
            # fleet out of the database.
            text = orjson.dumps({"fraction": fraction, "note": sanitize(note, 300)})
        self._board.tell_progress(text)

    def _usage(self, ended: float, ran: float) -> str | None:
        before, self._cpu, self._cpu_at = self._cpu, _cpu(), ended
        if ran < LONG:
            return None
        used = self._cpu
        # as in post-mortems
        return f'{{"cpu_user":{used[0] - before[0]:.6f},"cpu_system":{used[1] - before[1]:.6f},"max_rss":{used[2]}}}'


def sealed(outcome: Outcome, log: str | None, row: JobRow) -> tuple[Outcome, str | None]:
    """Return the outcome and log of a job of an encrypted kind, encrypted.

    Without keys they are withheld: what is written once stays written.
    """
    if outcome.error_class is not None:
        outcome = replace(outcome, error_class=None)  # It would be read by people without keys.
    # Jobherd's own code: a handler may give its failure the same one.
    if outcome.code == KEY_MISSING and outcome.label == "snoozed":
        return outcome, None
    try:
        ring()
    except KeyMissingError:
        error = None if outcome.error is None else "what it says cannot be encrypted: there is no key"
        return replace(outcome, result=None, error=error, traceback=None), None
    return seal_outcome(outcome, row.kind, row.id), seal_log(log, row.kind, row.id)


def kept(row: JobRow, days: int) -> int:
    """Return how many days a finished job is kept.

    A job with a webhook is kept at least one day, because the webhook call reads the history.
    """
    return 1 if days == 0 and row.extras is not None and orjson.loads(row.extras)["webhook"] is not None else days


def hand_over(extras: str | None, job: Job) -> Job:
    """Give a job its rare attributes and return it.

    The shared placeholder is replaced by a new object.
    """
    if extras is None:
        return job
    own = orjson.loads(extras)
    job = Job(id=0, kind="") if job is _NO_JOB else job
    job.tenant, job.webhook, job.parent_id, job.traceparent = (
        own["tenant"],
        own["webhook"],
        own["parent_id"],
        own["traceparent"],
    )
    job.payload_bytes = None if own["payload_bytes"] is None else base64.b64decode(own["payload_bytes"])
    return job


def _never(_token: int) -> bool:
    return False


def _cpu() -> tuple[float, float, int]:
    """Return user and system CPU seconds and the peak memory in bytes.

    They include the child processes of this process that have ended.
    """
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        own.ru_utime + children.ru_utime,
        own.ru_stime + children.ru_stime,
        max(own.ru_maxrss, children.ru_maxrss) * 1024,
    )


def _kind_of(handler: AnyHandler, number: int, hooks: JobHooks | None) -> _Kind:
    policy = handler.policy
    return _Kind(
        handler,
        number,
        policy.timeout,
        policy.max_attempts,
        handler.signature.takes_job or hooks is not None,
        policy.exclusive,
        policy.transactional,
        policy.keep_completed_days,
        policy.keep_failed_days,
        hooks,
        handler.signature.takes_bytes,
        bool(policy.encrypt),
        policy.encrypt == "only",
        bool(policy.encrypt or policy.redact),
    )
