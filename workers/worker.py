"""The life of a worker: connect, report READY, then claim, run and settle until dismissed.

Its claims come from `claim/claimer.py`, and `settle/in_flight.py` completes every one of them: each
job is run or released. Finished outcomes do not wait long. They are recorded separately after 50
ms, or before a job that may take longer than the rest of the 50 ms.
"""

from __future__ import annotations

import logging
import os
import time
from itertools import islice
from typing import TYPE_CHECKING

from jobherd.handlers._enqueue.origin import set_lookup
from jobherd.workers.batch_calls import BatchCalls
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.ipc.current_work import Phase, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_RECYCLE, EXIT_REQUESTED, HasStores, Ready, send
from jobherd.workers.process.logs import set_up
from jobherd.workers.process.recycling import report_recycling
from jobherd.workers.process.state_guard import StateGuard
from jobherd.workers.remote.selection import session_of
from jobherd.workers.run.batch import BatchExecutor
from jobherd.workers.run.declaration import declare, policy_of
from jobherd.workers.run.output import output_of
from jobherd.workers.run.running_job import RunningJob
from jobherd.workers.run.transaction import Transactions
from jobherd.workers.settle.in_flight import InFlightClaim
from jobherd.workers.settle.member_ends import MemberEnds
from jobherd.workers.settle.settler import Settler
from jobherd.workers.short_jobs import MAX_UNSETTLED, ShortJobs
from jobherd.workers.stores.runner import Tables, tables_of
from jobherd.workers.stores.table_check import are_fit
from jobherd.workers.system.malloc import trim_heap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.run.hooks import HookCaller

_log = logging.getLogger("jobherd.worker")


class Worker:
    """The parts of a worker, and the loop that runs its claims."""

    def __init__(self, context: ChildContext, handlers: Mapping[str, AnyHandler], hooks: HookCaller) -> None:
        settings = context.spec.settings
        self._context = context
        self._spec = context.spec
        self._board = context.spec.board
        self._control = context.spec.control
        self._wake = context.wake
        self._interrupts = context.interrupts
        self._hooks = hooks
        self._batch: list[JobRow] = []
        self._session = session_of(context, handlers, hooks.hooks, self._holding)
        ran_on = f"{settings.host}/{os.getpid()}"
        self._transactions = Transactions(
            self._session, self._spec, self._interrupts, ran_on=ran_on, be_alone=self._be_alone
        )
        self._output = output_of(self._spec)
        if self._output is not None:
            hooks.forward_output = self._output.take
        self._executor = BatchExecutor(
            handlers=handlers,
            numbers=self._board.tally.declare([policy_of(handler) for handler in handlers.values()]),
            board=self._board,
            control=self._control,
            interrupts=self._interrupts,
            transactions=self._transactions,
            settings=settings,
            title=context.title,
            hooks=hooks,
            output=self._output,
        )
        self._in_flight = InFlightClaim(
            self._session,
            Settler(self._session, ran_on=ran_on, on_lost=self._look_whether_known),
            self._board,
            self._interrupts,
            unstarted=lambda row, cancelled: self._executor.recorder.unstarted(row, cancelled=cancelled),
            is_running=lambda: self._executor.running is not None,
            ends=MemberEnds(self._spec.report),
        )
        self._executor.is_released = self._in_flight.is_released
        stores = self._stores = tables_of(handlers)
        kinds = handlers.keys() - {table.kind for table in stores}
        running = self._running = RunningJob(self._executor, self._session, hooks, settings.schema, kinds)
        set_up(
            process=f"worker {self._spec.slot}",
            log_format=settings.log_format,
            level=settings.log_level,
            stream=None if self._output is None else self._output.stream,
            board=self._board,
            ids=running.ids,
        )
        if self._output is not None:
            logging.getLogger().addHandler(self._output.handler(f"worker {self._spec.slot}", running.ids))
        output = () if self._output is None else self._output.files
        self._state_guard = StateGuard(context, whole=self._session.is_whole, files=output, shared=output[1:] or (1, 2))
        self._tables = (
            Tables(
                stores,
                spec=self._spec,
                session=self._session,
                executor=self._executor,
                interrupts=self._interrupts,
                taken=lambda: self._claimer.wakes.wake_another(),  # noqa: PLW0108  # the claimer does not exist yet
                hooks=hooks,
            )
            if stores
            else None
        )
        self._claimer = Claimer(
            context,
            handlers,
            hooks,
            session=self._session,
            in_flight=self._in_flight,
            executor=self._executor,
            state_guard=self._state_guard,
            tables=self._tables,
        )
        self._batch_calls = BatchCalls(
            context,
            session=self._session,
            claimer=self._claimer,
            executor=self._executor,
            in_flight=self._in_flight,
            state_guard=self._state_guard,
        )

        self._short_jobs = ShortJobs(
            context,
            claimer=self._claimer,
            executor=self._executor,
            in_flight=self._in_flight,
            state_guard=self._state_guard,
            output=self._output,
        )

    def forward_output(self) -> None:
        """Forward what was printed since the last job, mostly by hooks of the worker's exit.

        No later call reads that output.
        """
        if self._output is not None:
            self._output.take()

    def live(self) -> int:
        """Connect, report READY, and work until dismissed.

        Returns the exit code. Raises StopWaiting and UnsettledError.
        """
        self._session.connect()
        declare(self._session, self._spec.supervisor, self._claimer.handlers, dsn=self._spec.settings.dsn)
        if self._tables is not None and not are_fit(self._stores, self._session, self._spec):
            return EXIT_HANDLERS
        self._executor.recorder.child = self._session.child
        set_lookup(self._running.origin)
        self._in_flight.show_phase(Phase.IDLE)
        trim_heap()
        if self._tables is not None:
            # Order: before READY. With `--until-empty`, the supervisor must know about the stores
            # before this worker counts as READY and idle.
            send(self._spec.report, HasStores(alone=not self._claimer.handlers))
        send(self._spec.report, Ready(self._session.child, self._session.backend))
        while (batch := self._claimer.next()) is not None:
            self._work(batch)
        self._in_flight.show_phase(Phase.SETTLING, keep_job=True)
        self._in_flight.settle()
        self._in_flight.ends.flush()
        self._claimer.leave()
        self._executor.recorder.job_log.summarize(leaving=True)
        if self._state_guard.recycle_reason:
            report_recycling(self._board, self._state_guard.recycle_reason)
        self._in_flight.show_phase(Phase.LEAVING)
        self._context.title("exits")
        self.close()
        if self._state_guard.recycle_reason:
            return EXIT_RECYCLE
        return EXIT_REQUESTED

    def close(self) -> None:
        """End the sessions."""
        self._transactions.close()
        if self._tables is not None:
            self._tables.close()
        self._session.close()

    # -- running

    def _work(self, batch: list[JobRow]) -> None:
        interrupts, executor, board, in_flight, claimer, guard = (
            self._interrupts,
            self._executor,
            self._board,
            self._in_flight,
            self._claimer,
            self._state_guard,
        )
        together, recorder, expected = self._batch_calls.kinds, executor.recorder, executor.durations.expected
        job_log = recorder.job_log
        self._batch = batch
        in_flight.take(batch)
        among, behind = len(batch) > 1, in_flight.behind is not None
        done = self._short_jobs.run(batch) if among else 0
        if done is None:
            return
        # Between two jobs this is the end of the first one, so a job reads the clock only twice.
        now = time.monotonic() if done else claimer.claimed_at
        for place, row in islice(enumerate(batch), done, None):
            claimer.wakes.check(now)
            if interrupts.unread:
                interrupts.read()
            if self._wake.dismissed or self._control.draining or guard.recycle_reason:
                in_flight.release_unstarted(batch[place:])
                return
            reason = interrupts.pending.get(row.id, Reason.NONE) if interrupts.pending else Reason.NONE
            if reason is Reason.LOST:
                in_flight.drop_lost(len(batch) - place)
                return
            if reason is not Reason.NONE:
                in_flight.note(recorder.unstarted(row, cancelled=reason is Reason.CANCEL))
                continue
            if behind and expected(row.kind) > MAX_UNSETTLED:
                in_flight.make_sure()
                behind = False
                if (
                    self._state_guard.recycle_reason
                ):  # `make_sure` found that claim lost, and this worker's row is gone.
                    in_flight.release_unstarted(batch[place:])
                    return
            soon = not in_flight.unsettled or now - in_flight.first_at + expected(row.kind) <= MAX_UNSETTLED
            if not soon and not in_flight.settle(more=True):
                # The claim may be lost, so no further job of it may start. If it is still valid,
                # the rest is released.
                in_flight.release_unstarted(batch[place:])
                return
            if together and row.kind in together:
                if not self._batch_calls.work(batch, place):
                    return
                now = time.monotonic()
                continue
            try:
                finished = executor.execute(row, claimed_at=claimer.claimed_at, shares_claim=among)
            except Exception as problem:
                if board.begun == row.id:
                    raise
                finished = recorder.reject(row, problem)
            if finished is not None:
                now = finished.ended
            if executor.committed and finished is not None:
                guard.examine()
                executor.committed = False
                in_flight.forget()  # It was the only job of its claim.
                if job_log.waiting:
                    job_log.write()
                guard.restore(row.kind, now)
                break
            if not self._short_jobs.conclude(batch, place, finished):
                return
        if self._output is not None and len(batch) > 1 and self._output.is_pending():
            self._output.take()  # Output of a job too short to be checked. Without this, the next job would get it.
        claimer.query.adapt(batch)

    def _look_whether_known(self) -> None:
        """A claim was lost: check whether this worker's row still exists.

        If the row was deleted, the worker's other claims will be lost too, as soon as a maintenance
        process sees them.
        """
        if not self._session.is_registered():
            self._state_guard.recycle_reason = "its row in `children` is gone"

    def _be_alone(self) -> None:
        """Release the other jobs of the claim before the running job begins a transaction.

        The transaction locks the row of its claim, and no other job's outcome may have to wait for
        that lock.
        """
        batch, running = self._batch, self._executor.running
        place = next(place for place, row in enumerate(batch) if row is running)
        rest = batch[place + 1 :]
        del batch[place + 1 :]
        self._board.set_held(0)
        self._in_flight.release_unstarted(rest)
        self._in_flight.settle(more=True)
        self._in_flight.show_phase(Phase.RUNNING, keep_job=True)

    def _holding(self) -> list[int]:
        behind = self._in_flight.behind
        return [token for token in (self._in_flight.token, 0 if behind is None else behind[0]) if token]
