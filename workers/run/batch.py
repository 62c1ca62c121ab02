"""Batch handlers: runs several jobs of one kind in one call, and decides the outcome of each.

Invariant: no job may decide over another. A job that has crashed a process, or is in its last
attempt, is called alone. An exception, a timeout or a crash is recorded for every job of the call,
but it never costs another job its last attempt. Canceling one job of a call does not interrupt the
others. This module writes to no database.
"""

from __future__ import annotations

import logging
import os
import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._define.batch import BatchSignature, endings_of
from jobherd.handlers._define.signature import WHOLE
from jobherd.handlers._run.call import call
from jobherd.handlers._run.dispositions import JobTimeout, is_interruption
from jobherd.handlers._run.transaction import TOGETHER
from jobherd.handlers._values.encryption import open_bytes, open_payload
from jobherd.handlers._values.outcome import EXPIRED, OK, Raised
from jobherd.handlers._values.payload import decode_payload
from jobherd.handlers._values.sanitize import sanitize
from jobherd.workers.ipc.counters import OUTCOMES
from jobherd.workers.ipc.record import barrier
from jobherd.workers.ipc.status_board import CurrentWork, Phase, Reason
from jobherd.workers.job.finished import Finished, with_class
from jobherd.workers.process.interrupt import JobLost
from jobherd.workers.run.executor import JUDGING, LEAST, MOST_PROGRESS, Executor, Unreadable, hand_over, kept, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.handlers._run.job import Job
    from jobherd.workers.job.row import JobRow

_log = logging.getLogger("jobherd.worker")

_NUMBER: Final = {label: number for number, label in enumerate(OUTCOMES)}
_FULL: Final = 1.0001
"""Share of a claim that the jobs of a full call fill: slightly more than all of it. Otherwise
rounding could add one job too many to a claim.
"""


class BatchExecutor(Executor):
    """Runs jobs one at a time, or several of one kind in one call."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.suspects: set[int] = set()
        """Jobs that are called alone, because an error occurred before a call that included them."""
        skipped = [kind for kind in self._sizes if (hooks := self._kinds[kind].hooks) is not None and hooks.around]
        if skipped:
            _log.warning(
                "middleware is for one job at a time and not called around these batch handlers: %s", ", ".join(skipped)
            )

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of jobs per call, by kind, for batch handlers."""
        return self._sizes

    def gather(self, batch: list[JobRow], place: int) -> list[JobRow]:
        """Take the jobs of one call out of a claim and return them, the job at `place` first.

        Canceled jobs stay in the claim, because they are not called at all.
        """
        first = batch[place]
        size = self._kinds[first.kind].handler.policy.batch or 1
        if size == 1 or self.is_called_alone(first):
            return [first]
        told = self._interrupts.told
        found: list[JobRow] = [first]
        others: list[JobRow] = []
        for row in batch[place + 1 :]:
            along = (
                len(found) < size and row.kind == first.kind and row.id not in told and not self.is_called_alone(row)
            )
            (found if along else others).append(row)
        batch[place + 1 :] = others
        return found

    def is_called_alone(self, row: JobRow) -> bool:
        """Return whether a job must not share a call.

        That holds if it has crashed a process, if this attempt is its last one and not its first,
        or if it is a suspect.
        """
        return bool(row.crashes) or 1 < row.attempts >= self._most(row) or row.id in self.suspects

    def shares(self, longest: float) -> dict[str, float]:
        """Return the share of a claim that a job of each kind fills.

        For a batch handler, a claim holds at least the jobs of one call.
        """
        shares = super().shares(longest)
        for kind, size in self._sizes.items():
            shares[kind] = min(_FULL, max(self._expected.get(kind, longest), LEAST) / longest) / size
        return shares

    def execute_together(self, rows: list[JobRow], *, claimed_at: float, among: bool = False) -> list[Finished] | None:
        """Run jobs of one kind in one call and return their outcomes.

        Returns None if the claim was lost meanwhile.
        claimed_at: monotonic time at which the answer to the claim arrived. among: as for
        `execute`.
        """
        kind = self._kinds[rows[0].kind]
        handler, number, board, interrupts = kind.handler, kind.number, self._board, self._interrupts
        signature = handler.signature
        assert isinstance(signature, BatchSignature)
        started = time.monotonic()
        through = [row for row in rows if row.good_for is not None and started - claimed_at >= row.good_for]
        finished = [self._unrun(row, EXPIRED, kind, ended=started) for row in through]
        dropped = [
            row for row in rows if row not in through and interrupts.told.get(row.id) is Reason.CANCEL
        ]  # canceled while the call waited for more jobs
        finished += [self.unstarted(row, cancelled=True) for row in dropped]
        rows = [row for row in rows if row not in through and row not in dropped]
        if not rows:
            return finished
        first = rows[0]
        deadline = started + (timeout := min(kind.timeout if row.timeout is None else row.timeout for row in rows))
        now = CurrentWork(
            Phase.TOGETHER if len(rows) > 1 else Phase.RUNNING,
            self._child, first.token, first.id, number, first.attempts, self._most(first), first.crashes, started, deadline,
        )  # fmt: skip
        board.say_together(now, [(row.id, row.attempts, self._most(row), row.crashes) for row in rows[1:]])
        if among:
            barrier()  # as in `execute`
            if self.is_released(first.token):
                self._forsake(first)
                return finished + [self.unstarted(row, cancelled=False) for row in rows]
        for row in reversed(rows):
            board.count_started(row.id)  # The first one last: it is the job that the status board names.
            if row.attempts == 1:
                board.tally.count_wait(max(0.0, row.waited + started - claimed_at))
        self.running = first
        self.show(
            f"{first.kind} #{first.id}" if len(rows) == 1 else f"{first.kind} #{first.id} and {len(rows) - 1} more"
        )
        said: dict[int, str] = {}
        jobs = [self._one_of(row, deadline, said) for row in rows]
        interrupts.enter(first.id, deadline, timeout, self._control if kind.exclusive else None)
        interrupts.together = len(rows) > 1
        refused: dict[int, Raised | Unreadable] = {}
        called: list[Job] = []
        payloads: list[object] = []
        ending: object = None
        # As in `execute`: an interrupt can be raised at any point between these two assignments.
        try:
            interrupts.open = True
            if interrupts.told and (not interrupts.together or interrupts.told.get(first.id) is not Reason.CANCEL):
                interrupts.check()
            for row, job in zip(rows, jobs, strict=True):
                fits = False
                try:
                    job.payload = decode_payload(row.payload)
                    if kind.seals:
                        job.payload = open_payload(job.payload, row.kind, only=kind.seals_only)
                    arguments = handler.binding.bind(job.payload)
                    if row.extras is not None:
                        given = hand_over(row.extras, job)
                        if kind.seals:
                            given.payload_bytes = open_bytes(given.payload_bytes, row.kind)
                        signature.take_bytes({}, given.payload_bytes)
                    payload = arguments[WHOLE]
                    fits = True
                    for hook in () if kind.hooks is None else kind.hooks.before:
                        hook.tell(job)
                except Exception as problem:
                    refused[row.id] = Raised(problem) if fits else Unreadable(problem)
                else:
                    payloads.append(payload)
                    called.append(job)
            if called:
                ending = copy_context().run(call, handler, called, signature.arguments(payloads))
            interrupts.open = False
        except BaseException as raised:
            interrupts.open = False
            ending = Raised(raised)
        if interrupts.forked:
            os._exit(0)  # as in `execute`
        ended = max(self._clock(), started)
        endings: Mapping[int, object] = (
            {job.id: ending for job in called} if ending is None else self._part(ending, [job.id for job in called])
        )
        if isinstance(ending, Raised) and is_interruption(ending.exception) and len(endings) < len(rows) - len(refused):
            endings = {row.id: ending for row in rows}  # It was raised while the payloads were read.
        endings = {**endings, **refused}
        outcomes = []
        for row in rows:
            one = endings.get(row.id)
            outcomes.append(OK if one is None else self._judge(one, handler, row.attempts, self._most(row)))
        interruption = interrupts.raised
        if kind.hooks is not None:
            for job, outcome in zip(jobs, outcomes, strict=True):
                one = endings.get(job.id)
                told = (
                    one.exception if isinstance(one, Raised) else one.problem if isinstance(one, Unreadable) else None
                )
                self._hooks.tell_end(kind.hooks, job, outcome, told)
        ending = endings = {}
        interrupts.leave()
        interrupts.together = False
        self.running = None
        if isinstance(interruption, JobLost):
            return None
        ran = ended - started
        before = self._expected.get(first.kind)
        self._expected[first.kind] = ran if before is None else before + (ran - before) / 4
        # Usage of the whole call: it is recorded with its first job, as the captured output is.
        usage = self._usage(ended, ran)
        log = None
        if self._output is not None and self._output.is_pending():
            log = self._output.take({"job": first.id, "kind": first.kind})
        for row, outcome in zip(rows, outcomes, strict=True):
            board.tally.count(number, _NUMBER[outcome.label], ran, timeout=isinstance(interruption, JobTimeout))
            if outcome.code is not None:
                board.tally.count_error(number, outcome.code)
            self.job_log.note(row, outcome, self._most(row), ran, hidden=kind.hides)
            keep = kept(row, kind.keep_completed if outcome.label == "ok" else kind.keep_failed)
            own = log if row is first else None
            written, own = sealed(outcome, own, row) if kind.seals else (outcome, own)
            finished.append(
                Finished(
                    row.id,
                    written,
                    ran,
                    ended,
                    keep,
                    with_class(usage if row is first else None, written),
                    said.get(row.id),
                )
            )
            if own is not None:
                finished[-1] = finished[-1]._replace(log=own)
        return finished

    def _most(self, row: JobRow) -> int:
        return self._kinds[row.kind].max_attempts if row.max_attempts is None else row.max_attempts

    def _part(self, ending: object, ids: list[int]) -> dict[int, object]:
        """Return how each of the called jobs ended.

        The return value is the handler's and may run user code, so it gets a time limit too.
        """
        interrupts = self._interrupts
        before = interrupts.judge(JUDGING)
        try:
            interrupts.open = True
            found: dict[int, object] = dict(zip(ids, endings_of(ending, ids), strict=True))
            interrupts.open = False
        except BaseException as problem:
            interrupts.open = False
            found = dict.fromkeys(ids, Raised(problem))
        interrupts.raised = before or interrupts.raised
        return found

    def _one_of(self, row: JobRow, deadline: float, said: dict[int, str]) -> Job:
        """Return a job of a call.

        Its progress is recorded with its outcome, because the status board holds that of only one
        job.
        """
        job = self._job(row, self._most(row), deadline)
        job.doors = TOGETHER
        told = self._interrupts.told
        job.on_progress = _into(said, row.id, bare=self._kinds[row.kind].seals)
        job.on_cancelled = lambda: told.get(row.id) is Reason.CANCEL or self._is_cancelled()
        return job


def _into(said: dict[int, str], job: int, *, bare: bool) -> Callable[[float, str, object], None]:
    def tell(fraction: float, note: str, data: object) -> None:
        if bare:
            note, data = "", None  # as in `execute`
        record = {
            "fraction": fraction,
            **({"note": note} if note else {}),
            **({"data": data} if data is not None else {}),
        }
        try:
            text = orjson.dumps(record).decode()
        except (TypeError, ValueError, RecursionError):
            text = "\\u0000"
        if len(text) > MOST_PROGRESS or "\\u0000" in text:
            text = orjson.dumps({"fraction": fraction, "note": sanitize(note, 300)}).decode()
        said[job] = text

    return tell
