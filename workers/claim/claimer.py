"""Waits for work, checks whether a worker may claim, and claims its next jobs.

The outcomes of the last claim travel with the next claim, so a claim costs one round trip and one
wait for the disk. It runs no job of the queue. If the queue has no job, it runs one record of the
application's own tables (`table_records.py`).
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd.handlers._define.table_store import TableHandler
from jobherd.workers.claim.claim_query import ClaimQuery
from jobherd.workers.claim.restriction import restriction_of
from jobherd.workers.claim.table_records import TableRecords
from jobherd.workers.claim.wakes import Wakes
from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.job.row import claimed_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Session
    from jobherd.workers.database.opening import Row
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.run.batch import BatchExecutor
    from jobherd.workers.run.hooks import HookCaller
    from jobherd.workers.settle.in_flight import InFlightClaim
    from jobherd.workers.stores.runner import Tables

_log = logging.getLogger("jobherd.worker")

_RECHECK: Final = 0.2
"""Seconds before a worker that must not claim checks again."""
_LOCKED: Final = 0.25
"""Seconds before a worker looks again at a queue whose ready rows are all locked by other sessions."""
CHECK: Final = 60.0
"""Seconds between two checks for jobs that are claimed in this worker's name without its knowledge."""
AHEAD: Final = 0.0025
"""Least total duration of a claim's jobs, in seconds, for which the next claim is made before their
outcomes are recorded. With shorter jobs, the answer would not have arrived when the next jobs have
finished. Waiting for it costs another sleep: drains of 100 jobs per claim, which took 1 ms
together, were slower by an eighth (tests/bench/against.py).
"""
_OWN_POLL: Final = 60
"""Polls after which a worker claims without a wake, in case its supervisor hangs. Normally the
supervisor wakes one worker per poll. The number is high because 64 idle workers must not send 64
times as many queries as one.
"""


class Claimer:
    """Makes the claims of a worker.

    handlers: the handlers of queue jobs. The constructor's argument includes table stores.
    claimed_at: monotonic time at which the answer to the last claim arrived.
    restriction: which jobs may be claimed. wakes: what wakes this worker. query: the next claim.
    """

    def __init__(
        self,
        context: ChildContext,
        handlers: Mapping[str, AnyHandler],
        hooks: HookCaller,
        *,
        session: Session,
        in_flight: InFlightClaim,
        executor: BatchExecutor,
        state_guard: StateGuard,
        tables: Tables | None,
    ) -> None:
        spec = context.spec
        self.handlers = {kind: handler for kind, handler in handlers.items() if not isinstance(handler, TableHandler)}
        self.claimed_at = 0.0
        self.restriction = restriction_of(spec, handlers, hooks)
        self.wakes = Wakes(context, in_flight, executor.title)
        self._board = spec.board
        self._control = spec.control
        self._settings = spec.settings
        self._hooks = hooks
        self._session = session
        self._in_flight = in_flight
        self._usage = executor.usage
        self._job_log = executor.recorder.job_log
        self._state_guard = state_guard
        self._stores = None if tables is None else TableRecords(tables, session, spec, self.restriction)
        self.query = ClaimQuery(spec, self.handlers, executor.durations, executor.sizes.values(), self.restriction)
        self._checked_at = time.monotonic()

    def next(self) -> list[JobRow] | None:
        """Wait for the next claim and return its jobs, or None when the worker must exit."""
        avoided: list[str] = []
        epoch = 0
        rested = False
        """The worker was just idle. All checks ran before it slept, and a producer may wait for this job."""
        stored = False
        """A table record was just worked, so the queue is next."""
        while True:
            if not rested:
                now = time.monotonic()
                self._state_guard.look(
                    now
                )  # First, because it checks whether this worker's file descriptors are intact.
                self.wakes.check(now)
            if self.wakes.dismissed or self._state_guard.recycle_reason:
                return None
            if self._control.draining or time.monotonic() >= self._control.lease_deadline - self._settings.lease / 5:
                # Do not claim without a valid lease: another supervisor may be reclaiming these
                # jobs. Nor begin an exclusive job when it would be ended at once: worker after
                # worker would claim it and be interrupted until the lease is renewed.
                self._settle_apart()
                self.wakes.pause(_RECHECK)
                rested = False
                continue
            if not rested:
                self._requeue_unacknowledged(now)
            if not avoided:
                epoch = self._control.epoch
            if self._stores is not None and not rested and not stored and self._stores.is_due():
                self._settle_apart()
                if stored := self._work_record():
                    continue  # The record may have taken long, so check again whether to claim.
            stored = False
            rows = self._claim(avoided, rested=rested)
            rested = False
            batch = self._accept(rows)
            if batch:
                if self.wakes.woken and batch[0].more:
                    self.wakes.wake_another()
                self.wakes.woken = False
                self.wakes.report_opening()
                return batch
            if rows and not rows[-1].id and not rows[-1].queue:
                self.query.switch_gates()
                continue
            if rows and not rows[-1].id:
                # Other sessions, which may be slow, have locked every ready job of that queue. Try
                # the other queues.
                avoided.append(rows[-1].queue)
                continue
            if not rows and self._work_record():
                avoided.clear()
                continue
            if not rows:
                # Releasing a row lock notifies no worker, so a worker that found locked rows tries
                # again soon.
                self._idle(epoch, _LOCKED if avoided else self._settings.poll * _OWN_POLL)
                rested = True
            avoided.clear()

    def leave(self) -> None:
        """Wake other workers for what this worker's last claim occupied: it makes no further claim."""
        if self.query.last[0]:
            self._session.run("wake/notify_workers", {"queue": "*"})
        self.restriction.leave()

    # -- waiting

    def _idle(self, epoch: int, longest: float) -> None:
        if self._state_guard.recycle_reason:
            return
        longest = self.restriction.before_rest(epoch, longest, woken=self.wakes.woken)
        # Not the time of the last claim: a hook may reject every claim before it is made.
        if self._requeue_unacknowledged(time.monotonic()):
            return
        longest *= random.uniform(0.9, 1.1)
        if self._session.pooled:
            # A session without a pooler leaves no unknown claims: it is ended before the next one
            # starts.
            longest = min(longest, CHECK)
        longest = min(longest, self._job_log.summarize())
        # Otherwise the idle time's CPU usage, perhaps of a whole night, would count toward the next
        # job.
        self._usage.restart()
        start = self.query.scan_start
        self.wakes.rest(epoch, start.rest(longest, time.monotonic()) if start.left_out else longest)
        self.wakes.woken = True

    def _requeue_unacknowledged(self, now: float) -> bool:
        """Every `CHECK` seconds, release jobs claimed in this worker's name whose answer was lost.

        Return whether there were any. They would wait for as long as this process lives.
        """
        if now - self._checked_at < CHECK:
            return False
        self._checked_at = now
        self._settle_apart()
        return self._session.requeue_unacknowledged()

    def _settle_apart(self) -> None:
        """Write pending outcomes before any query that is not a claim, after which it might have to exit."""
        if self.restriction.budgeted and self._in_flight.unsettled:
            self.wakes.woken = True  # A settlement frees budget: another worker's job may now fit.
        self._in_flight.settle()

    def _ask_restriction(self) -> None:
        """Ask hooks and budget what may be claimed, after the pending outcomes are written."""
        self._settle_apart()
        self.restriction.ask()
        self._state_guard.recycle_reason = self._state_guard.recycle_reason or self._hooks.interruption

    # -- claiming

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        """Make the next claim, unless the restriction allows none."""
        if self.restriction.exists:
            if not avoided:  # The first claim of a round over the queues.
                self._ask_restriction()
            if not self.restriction.allows or self._state_guard.recycle_reason:
                return []
        if not self.handlers:
            return []  # This worker serves table stores only.
        try:
            return self._make_claim(avoided, rested=rested)
        except psycopg.Error as problem:
            if not self.restriction.handle_error(problem):
                raise
            return []

    def _make_claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        """Write the pending outcomes and make the next claim in one round trip."""
        query, in_flight = self.query, self._in_flight
        # After a wake, a producer may wait for the job to start, so this check is postponed.
        if query.scan_start.doubt and not rested:
            self._count_dead_rows()
        begun, together = time.monotonic(), bool(in_flight.unsettled)
        statement, claim = query.build(self._session.child, avoided, rested=rested, spent=begun - self.claimed_at)
        rows = None
        if together:
            long = begun - self.claimed_at >= AHEAD and not self._session.pooled
            rows = in_flight.settle_and_claim(statement, claim, ahead=long and query.may_go_ahead(statement))
        else:
            # A transaction has settled the in-flight claim, or the claim is lost. The outcomes of
            # the claim before it may still be unconfirmed.
            in_flight.make_sure()
        if rows is None:
            if not rested:
                in_flight.show_phase(Phase.CLAIMING)
            rows = self._send(statement, claim, eager=rested)
        self.claimed_at = self.wakes.checked_at = time.monotonic()
        found = claimed_jobs(rows)
        self.wakes.opens_in = query.split_opening(found)
        self._board.count_claim(empty=not found)
        if not found and query.is_turn_over(claim, self.claimed_at):
            return self._claim(avoided, rested=rested)
        if not rested:
            self._usage.restart()
        waited = together and in_flight.behind is None
        query.note_result(found, statement, took=self.claimed_at - begun, together=waited, now=self.claimed_at)
        return found

    def _count_dead_rows(self) -> None:
        self._settle_apart()
        dead = {table: dead for table, dead, _ in self._session.run("maintenance/count_dead_rows")}
        self.query.scan_start.note_dead(dead["ready"], named=bool(self._settings.served), now=time.monotonic())

    def _send(self, statement: str, claim: dict[str, Any], *, eager: bool) -> list[Row]:
        if before := self.restriction.requests_before():
            return self._session.run_in_one(*before, (statement, claim), eager=eager)
        return self._session.run_urgent(statement, claim) if eager else self._session.run(statement, claim)

    def _accept(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Return the rows that are claimed jobs. Release jobs beyond the requested number."""
        batch = [row for row in rows if row.token is not None]
        if batch:
            self._in_flight.token = batch[0].token
            if self.query.gated:
                self.query.last = (batch[0].queue, batch[0].kind)
            surplus = batch[self.query.wanted :]
            if surplus:
                # A plan that executes a locking LIMIT more than once can do this: see claim_jobs.sql.
                extra = len(surplus)
                _log.error("a claim returned %d jobs, %d more than requested: releasing the surplus", len(batch), extra)
                self._in_flight.release_unstarted(surplus)
                del batch[len(batch) - len(surplus) :]
        return batch

    def _work_record(self) -> bool:
        """Process one record of the application's own tables, if one waits. Return whether there was one."""
        if self._stores is None:
            return False
        if self.restriction.exists:
            self._ask_restriction()  # Again: the last claim may have used the remaining budget.
            if not self.restriction.allows:
                return False
        if self.wakes.dismissed or self._state_guard.recycle_reason:
            return False
        worked = self._stores.work()
        if worked:
            self._state_guard.examine()
        self._state_guard.recycle_reason = self._state_guard.recycle_reason or self._hooks.interruption
        return worked
