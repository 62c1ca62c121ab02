"""Runs the short jobs of a claim one after the other, with everything in local variables.

It is the same work as `Executor.execute` and `InFlightClaim.enter` for each job, without what such
a job cannot need. A job that does not fit is left to `worker.py`: its kind is not plain, was not
short or not clean lately, or the job itself sets options. So is a job that must not start. A job that
does not end well is judged and entered as any other. What is only counted is added up and written
once, at the end.

Invariant: as in `executor.py`, user code runs only while `interrupts.open` is set.
"""

from __future__ import annotations

import os
from contextvars import copy_context
from itertools import islice
from typing import TYPE_CHECKING, Final

from jobherd.handlers._run.call import result_of
from jobherd.handlers._run.dispositions import is_interruption
from jobherd.handlers._values.outcome import Raised
from jobherd.workers.claim.wakes import LOOK
from jobherd.workers.ipc.board_memory import Word
from jobherd.workers.ipc.counters import OUTCOME_NUMBER
from jobherd.workers.ipc.job_table import ROWS
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.job.row import MEMBER
from jobherd.workers.run.arguments import NO_JOB
from jobherd.workers.run.executor import LONG_AFTER
from jobherd.workers.run.judge import Unreadable
from jobherd.workers.run.usage import LONG
from jobherd.workers.system.failpoints import armed, reach

if TYPE_CHECKING:
    from jobherd.workers.claim.claimer import Claimer
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.run.batch import BatchExecutor
    from jobherd.workers.run.job_kinds import JobKind
    from jobherd.workers.run.output import Output
    from jobherd.workers.settle.in_flight import InFlightClaim

MAX_UNSETTLED: Final = 0.05
"""Seconds that an outcome may wait for its settlement while other jobs of its claim run."""


class ShortJobs:
    """The short jobs of a worker."""

    def __init__(
        self,
        context: ChildContext,
        *,
        claimer: Claimer,
        executor: BatchExecutor,
        in_flight: InFlightClaim,
        state_guard: StateGuard,
        output: Output | None,
    ) -> None:
        self._board = context.spec.board
        self._control = context.spec.control
        self._wake = context.wake
        self._interrupts = context.interrupts
        self._claimer = claimer
        self._executor = executor
        self._in_flight = in_flight
        self._guard = state_guard
        self._output = output
        # With `log_jobs = all`, each job needs a line.
        every = not executor.recorder.job_log.is_all
        self._kinds = {name: kind for name, kind in executor.kinds.items() if kind.plain and every}

    def run(self, batch: list[JobRow]) -> int | None:
        """Run the jobs of a claim from the first on, and return how many are dealt with.

        Returns None if no further job of the claim may start: the others are released.
        """
        place, last, listed = 0, min(len(batch), ROWS), 0
        while place < last:
            name = batch[place].kind
            kind = self._kinds.get(name)
            if kind is None or name not in self._guard.clean or self._executor.durations.expected(name) >= LONG:
                break
            if not listed:
                jobs, attempts = [row.id for row in batch[:last]], [row.attempts for row in batch[:last]]
                listed = self._board.outcomes.list_jobs(self._executor.recorder.child, jobs, attempts)
            before = place
            place, ran, finished = self._run_kind(batch, place, last, kind, listed)
            if ran:
                if not self.conclude(batch, place, finished):
                    return None
                place += 1
            elif place == before:
                break
        return place

    def _run_kind(
        self, batch: list[JobRow], place: int, last: int, kind: JobKind, listed: int
    ) -> tuple[int, bool, Finished | None]:
        """Run jobs of one kind from `place` on, before `last`, while they end well.

        listed: what `OutcomeBuffer.list_jobs` has returned.

        Returns the place of the first job that did not, whether that one ran, and what `end` returns
        for it.
        """
        executor, in_flight, guard, output = self._executor, self._in_flight, self._guard, self._output
        interrupts, board, wakes, wake = self._interrupts, self._board, self._claimer.wakes, self._wake
        words, here, clock, usage = board.words, interrupts.here, executor.clock, executor.usage
        timeout, keep, token, table = kind.timeout, kind.keep_completed, in_flight.token, board.outcomes.table
        table.set_kind(place, last, kind=kind.number, timeout=timeout, most=kind.max_attempts, keep=keep)
        starts_at, ends_at = table.starts, table.ends
        first, row = place, batch[place]
        name = row.kind
        average = executor.durations.expected(name)
        starts: list[float] = []
        ends: list[float] = []
        over, ending, look_at = False, None, 0.0
        now = clock()
        executor.shares_claim = True
        if executor.progress.exists:
            executor.progress.clear()
        # One timer for all of them: that of the first is the earliest.
        interrupts.enter(row.id, now + timeout, timeout, None, now + LONG_AFTER)
        fresh = not in_flight.unsettled
        until = MAX_UNSETTLED - average + (now if fresh else in_flight.first_at)
        try:
            function, read = kind.handler.function, kind.handler.binding.read
            for row in islice(batch, place, last):
                (_, job, own, _, payload, _, most_own, crashes, _, limit, _, _, good_for, _, _, extras) = row
                if (
                    own != name
                    or (extras is not None and not extras.startswith(MEMBER))
                    or good_for is not None
                    or most_own is not None
                    or limit is not None
                    or crashes
                ):
                    break
                if now >= look_at:
                    look_at = now + LOOK
                    wakes.check(now)
                    guard.examine()
                    if now - usage.at >= LONG:
                        usage.take(now, 0.0)
                    if self._control.draining:
                        break
                if interrupts.pending or interrupts.unread or wake.dismissed or guard.recycle_reason or now > until:
                    break
                started = clock()
                starts_at[place] = started
                words[Word.SHORT] = listed + place
                if armed:
                    reach("job.announced")
                barrier()  # Race: as in `Executor._announce`.
                if words[Word.REVOKED] == token:
                    executor.recorder.withdraw(row)
                    break
                board.count_started(job)
                if armed:
                    reach("job.started")
                starts.append(started)
                executor.running = row
                interrupts.go_on(job, started + timeout)
                context, fits = copy_context(), False
                # An interrupt can be raised at any point between these two assignments, and nowhere
                # else: see process/interrupt.py.
                try:
                    interrupts.open = True
                    if interrupts.pending:
                        interrupts.check()
                    arguments = read(payload)
                    fits = True
                    ending = context.run(function, **arguments)
                    if ending is not None:
                        ending = context.run(result_of, ending)
                    interrupts.open = False
                except BaseException as raised:
                    interrupts.open = False
                    ending = Raised(raised) if fits or is_interruption(raised) else Unreadable(raised)
                if not here[0]:
                    os._exit(0)  # As in `Executor._call`.
                ended = clock()
                ran = ended - started
                if (
                    ending is not None
                    or interrupts.raised is not None
                    or not 0.0 <= ran < LONG
                    or (output is not None and output.dirty)
                ):
                    over = True
                    break
                if armed:
                    reach("job.ended")
                ends_at[place] = ended  # The outcome is on the status board, before the next job starts.
                if armed:
                    reach("job.entered")
                if fresh:
                    in_flight.note_first(ended)
                    fresh = False
                ends.append(ended)
                place += 1
                now = ended
                average += (ran - average) / 4
                if now >= guard.due:
                    guard.restore(name, now)
                    if name not in guard.clean:
                        break
        except Exception:
            if board.begun == row.id:
                raise
            executor.recorder.withdraw(row)  # `worker.py` rejects it.
        finally:
            executor.running = row if over else None
            interrupts.leave()
            self._add_up(batch[first : place + over], kind, starts, ends)
        executor.durations.by_kind[name] = average
        if not over:
            guard.examine()
        try:
            return place, over, executor.end(row, kind, NO_JOB, context, started, ending) if over else None
        finally:
            ending = None  # As in `Executor._call`.

    def conclude(self, batch: list[JobRow], place: int, finished: Finished | None) -> bool:
        """Enter the outcome of a job of the claim. Return false if no further job of it may start."""
        guard, in_flight, kind = self._guard, self._in_flight, batch[place].kind
        job_log = self._executor.recorder.job_log
        guard.examine()
        if finished is None:
            in_flight.drop_lost(len(batch) - place)
            return False
        valid, now = in_flight.enter(finished, more=place + 1 < len(batch)), finished.ended
        if job_log.waiting:
            job_log.write()
        if now >= guard.due or kind not in guard.clean:
            # Only after the outcome is stored: a process killed before that point would run the job
            # again.
            guard.restore(kind, now)
        if not valid or (len(batch) > 1 and in_flight.is_released(in_flight.token)):
            # Revoked: a job took longer than expected, and the supervisor has released the others.
            # This call releases those that the supervisor has not.
            in_flight.release_unstarted(batch[place + 1 :])
            return False
        return True

    def _add_up(self, rows: list[JobRow], kind: JobKind, starts: list[float], ends: list[float]) -> None:
        """Count the jobs that were started, and note the outcomes of those that ended well."""
        claimed_at, tally = self._claimer.claimed_at, self._board.tally
        tally.count_waits(
            [row.waited + started - claimed_at for row, started in zip(rows, starts, strict=False) if row.attempts == 1]
        )
        if ends:
            ran = [ended - started for started, ended in zip(starts, ends, strict=False)]
            tally.count_all(kind.number, OUTCOME_NUMBER["ok"], ran)
            self._in_flight.note_plain([row.id for row in rows[: len(ends)]], ran, ends, kind.keep_completed)
            if self._executor.title.shown == "idle":
                self._executor.title.show("short jobs")
