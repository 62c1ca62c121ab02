"""The life of a worker: connect, report READY, then claim, run and settle until dismissed.

Its claims come from `claim/claimer.py`, and `settle/in_flight.py` completes every one of them: each
job is run or released. Finished outcomes do not wait long. They are recorded separately after 50
ms, or before a job that may take longer than the rest of the 50 ms.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.hooks import before_claim
from jobherd.handlers._enqueue.origin import Origin, ask
from jobherd.handlers._enqueue.tracing import ids_of
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.database.connection import Session
from jobherd.workers.ipc.current_work import Phase, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_LEFT, EXIT_WORN, HasStores, MoreWork, Ready, send
from jobherd.workers.job.row import JobRow
from jobherd.workers.process.logs import set_up
from jobherd.workers.process.state_guard import StateGuard
from jobherd.workers.run.batch import BatchExecutor
from jobherd.workers.run.declaration import kinds_of, policy_of
from jobherd.workers.run.gathering import Gathering
from jobherd.workers.run.output import Output
from jobherd.workers.run.transaction import Transactions
from jobherd.workers.settle.in_flight import InFlightClaim
from jobherd.workers.settle.settler import Settler
from jobherd.workers.stores.runner import Tables, tables_of
from jobherd.workers.stores.table_check import are_fit
from jobherd.workers.system.malloc import give_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.run.hooks import Caller

WORTH_A_WARNING: Final = frozenset({3, 10, 100, 1000, 10_000, 100_000})
"""Replacements of a slot's worker caused by one kind. These counts are logged as warnings, so that
a kind that causes each one is visible without a flood.
"""

_log = logging.getLogger("jobherd.worker")

HELD: Final = 0.05
"""Seconds that an outcome may wait for its settlement while other jobs of its claim run."""


class Worker:
    """The parts of a worker, and the loop that runs its claims."""

    def __init__(self, context: ChildContext, handlers: Mapping[str, AnyHandler], hooks: Caller) -> None:
        settings = context.spec.settings
        self._context = context
        self._spec = context.spec
        self._board = context.spec.board
        self._control = context.spec.control
        self._wake = context.wake
        self._interrupts = context.interrupts
        self._hooks = hooks
        self._batch: list[JobRow] = []
        self._told: Origin | None = None
        self._session = Session(self._spec, self._wake, self._holding, pinned=not hooks.hooks.at(before_claim))
        ran_on = f"{settings.host}/{os.getpid()}"
        self._transactions = Transactions(
            self._session, self._spec, self._interrupts, ran_on=ran_on, be_alone=self._be_alone
        )
        self._output = None
        if context.spec.output is not None:
            reading, writing = context.spec.output
            self._output = Output(
                self._board,
                reading=reading,
                writing=writing,
                size=settings.log_size,
                who=f"worker {self._spec.slot}",
                log_format=settings.log_format,
            )
            hooks.pass_on = self._output.take
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
        self._together = self._executor.sizes
        self._gathering = Gathering(self._executor.kinds, self._executor.sizes)
        self._in_flight = InFlightClaim(
            self._session,
            Settler(self._session, ran_on=ran_on, on_lost=self._look_whether_known),
            self._board,
            self._interrupts,
            unstarted=lambda row, cancelled: self._executor.recorder.unstarted(row, cancelled=cancelled),
            is_running=lambda: self._executor.running is not None,
        )
        self._executor.is_released = self._in_flight.is_released
        set_up(
            who=f"worker {self._spec.slot}",
            log_format=settings.log_format,
            level=settings.log_level,
            stream=None if self._output is None else self._output.stream,
            board=self._board,
            ids=self._ids,
        )
        if self._output is not None:
            logging.getLogger().addHandler(self._output.handler(f"worker {self._spec.slot}", self._ids))
        output = () if self._output is None else self._output.files
        self._tidy = StateGuard(context, whole=self._session.is_whole, files=output, shared=output[1:] or (1, 2))
        stores = self._stores = tables_of(handlers)
        self._tables = (
            Tables(
                stores,
                spec=self._spec,
                session=self._session,
                executor=self._executor,
                interrupts=self._interrupts,
                taken=self._tell_of_more,
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
            state_guard=self._tidy,
            tables=self._tables,
        )

    def pass_on(self) -> None:
        """Pass on what was printed since the last job, mostly by hooks of the worker's exit.

        No later call reads that output.
        """
        if self._output is not None:
            self._output.take()

    def live(self) -> int:
        """Connect, report READY, and work until dismissed.

        Returns the exit code. Raises Left and UnsettledError.
        """
        self._session.connect()
        kinds = kinds_of(self._claimer.handlers)
        self._session.run("lease/register_kinds", kinds)
        self._session.run("lease/declare_limits", kinds)
        if self._tables is not None and not are_fit(self._stores, self._session, self._spec):
            return EXIT_HANDLERS
        self._executor.recorder.child = self._session.child
        ask(self._origin)
        self._in_flight.say(Phase.IDLE)
        give_back()
        if self._tables is not None:
            # Order: before READY. With `--until-empty`, the supervisor must know about the stores
            # before this worker counts as READY and idle.
            send(self._spec.report, HasStores(alone=not self._claimer.handlers))
        send(self._spec.report, Ready(self._session.child, self._session.backend))
        while (batch := self._claimer.next()) is not None:
            self._work(batch)
        self._in_flight.say(Phase.SETTLING, keep_job=True)
        self._in_flight.settle()
        self._claimer.leave()
        self._executor.recorder.job_log.summarize(leaving=True)
        if self._tidy.worn:
            self._report_recycling()
        self._in_flight.say(Phase.LEAVING)
        self._context.title("exits")
        self.close()
        if self._tidy.worn:
            return EXIT_WORN
        return EXIT_LEFT

    def _report_recycling(self) -> None:
        """Log why this process is replaced.

        If a job caused it, count it for the job's kind. A kind that keeps causing it is logged as a
        warning.
        """
        record = self._board.now()
        if record is None or not record.job or not self._tidy.worn.startswith("a job "):
            _log.info("worker is replaced: %s", self._tidy.worn)
            return
        count = self._board.tally.count_recycled(record.kind)
        log = _log.warning if count in WORTH_A_WARNING else _log.info
        kind = self._board.tally.policy(record.kind).name
        log(
            "worker is replaced: %s",
            self._tidy.worn,
            extra={"job": record.job, "kind": kind, "replaced_for_kind": count},
        )

    def close(self) -> None:
        """End the sessions."""
        self._transactions.close()
        if self._tables is not None:
            self._tables.close()
        self._session.close()

    # -- running

    def _work(self, batch: list[JobRow]) -> None:
        interrupts, executor, board, in_flight, claimer, tidy = (
            self._interrupts,
            self._executor,
            self._board,
            self._in_flight,
            self._claimer,
            self._tidy,
        )
        together, recorder, expected = self._together, executor.recorder, executor.durations.expected
        job_log = recorder.job_log
        self._batch = batch
        in_flight.take(batch)
        among, behind = len(batch) > 1, in_flight.behind is not None
        # Between two jobs this is the end of the first one, so a job reads the clock only twice.
        now = claimer.claimed_at
        for place, row in enumerate(batch):
            claimer.wakes.check(now)
            if interrupts.unheard:
                interrupts.hear()
            if self._wake.dismissed or self._control.draining or tidy.worn:
                in_flight.hand_back(batch[place:])
                return
            reason = interrupts.told.get(row.id, Reason.NONE) if interrupts.told else Reason.NONE
            if reason is Reason.LOST:
                in_flight.lose(len(batch) - place)
                return
            if reason is not Reason.NONE:
                in_flight.note(recorder.unstarted(row, cancelled=reason is Reason.CANCEL))
                continue
            if behind and expected(row.kind) > HELD:
                in_flight.make_sure()
                behind = False
                if self._tidy.worn:  # `make_sure` found that claim lost, and this worker's row is gone.
                    in_flight.hand_back(batch[place:])
                    return
            soon = not in_flight.unsettled or now - in_flight.first_at + expected(row.kind) <= HELD
            if not soon and not in_flight.settle(more=True):
                # The claim may be lost, so no further job of it may start. If it is still valid,
                # the rest is released.
                in_flight.hand_back(batch[place:])
                return
            if together and row.kind in together:
                if not self._work_together(batch, place):
                    return
                now = time.monotonic()
                continue
            try:
                finished = executor.execute(row, claimed_at=claimer.claimed_at, shares_claim=among)
            except Exception as problem:
                if board.begun == row.id:
                    raise
                finished = recorder.refuse(row, problem)
            tidy.examine()
            if finished is None:
                in_flight.lose(len(batch) - place)
                return
            now = finished.ended
            if executor.committed:
                executor.committed = False
                in_flight.forget()  # It was the only job of its claim.
                if job_log.waiting:
                    job_log.write()
                tidy.put_back(row.kind, now)
                break
            stands = in_flight.enter(finished, more=place + 1 < len(batch))
            if job_log.waiting:
                job_log.write()
            if now >= tidy.due or row.kind not in tidy.tidy:
                # Only after the outcome is stored: a process killed before that point would run the
                # job again.
                tidy.put_back(row.kind, now)
            if not stands or (among and in_flight.is_released(in_flight.token)):
                # Revoked: a job took longer than expected, and the supervisor has released the
                # others. This call releases those that the supervisor has not.
                in_flight.hand_back(batch[place + 1 :])
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
            self._tidy.worn = "its row in `children` is gone"

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
        self._in_flight.hand_back(rest)
        self._in_flight.settle(more=True)
        self._in_flight.say(Phase.RUNNING, keep_job=True)

    def _work_together(self, batch: list[JobRow], place: int) -> bool:
        """Call the batch handler of the job at `place` with all jobs that fit into its call.

        These jobs are taken out of the claim. Return whether to continue with the claim.
        """
        rows = self._gathering.gather(batch, place, self._interrupts.told)
        among = place + 1 < len(batch)
        linger = self._claimer.handlers[rows[0].kind].policy.linger
        lingers = linger and not among and not rows[-1].more and not self._gathering.is_called_alone(rows[0])
        if lingers and not self._linger(rows, time.monotonic() + linger):
            self._in_flight.hand_back(rows)
            return False
        self._board.set_held(len(batch) - place - 1)
        finished: list[Finished] | None
        try:
            finished = self._executor.execute_together(rows, claimed_at=self._claimer.claimed_at, shares_claim=among)
        except Exception as problem:
            named = self._board.now()
            if named is None or (named.job in {row.id for row in rows} and self._board.begun == named.job):
                raise  # It had started.
            if len(rows) > 1:  # To find the job that caused it, each job is called alone.
                self._gathering.suspects |= {row.id for row in rows}
                batch[place + 1 : place + 1] = rows[1:]
                return self._work_together(batch, place)
            finished = [self._executor.recorder.refuse(rows[0], problem)]
        self._tidy.examine()
        if finished is None:
            self._in_flight.lose(len(rows) + len(batch) - place - 1)
            return False
        stands = True
        for one in finished:
            stands = stands and self._in_flight.enter(one, more=among)
        self._executor.recorder.job_log.write()
        self._tidy.put_back(rows[0].kind, time.monotonic())
        if not stands or (among and self._in_flight.is_released(self._in_flight.token)):
            self._in_flight.hand_back(batch[place + 1 :])
            return False
        return True

    def _linger(self, rows: list[JobRow], until: float) -> bool:
        """Wait for more jobs of the same call, until `until`.

        The wait ends early if the call is full, another queue or kind must be served, or the worker
        must exit. Each job is claimed when it arrives. Meanwhile this worker counts as idle, so it
        is woken for new jobs as other workers are. Return whether the jobs may be run.
        """
        if not self._in_flight.settle(more=True):
            return False
        if self._in_flight.is_flushed():
            # The supervisor's request may still be on its way. It must not find one of its jobs in
            # this claim again, for another attempt.
            return True
        session, kind, called = self._session, rows[0].kind, False
        more: dict[str, object] = {
            "supervisor": self._spec.supervisor,
            "child": session.child,
            "token": self._in_flight.token,
            "kind": kind,
        }
        while True:
            epoch, sessions = self._control.epoch, session.sessions
            found = session.run(
                *self._claimer.restriction.narrow(
                    "claim/claim_more", {**more, "wanted": self._together[kind] - len(rows)}
                )
            )
            now = time.monotonic()
            # What the database returned about these jobs counts from now, not from the first claim.
            since = now - self._claimer.claimed_at
            for row in map(JobRow._make, found):
                good_for = None if row.good_for is None else row.good_for + since
                rows.append(row._replace(good_for=good_for, waited=row.waited - since))
                self._in_flight.held.add(row.id)
            self._board.count_claim(empty=not found)
            self._interrupts.hear()  # A cancellation of a job that this worker did not know yet was ignored.
            if session.sessions != sessions:
                # The jobs of that answer are in this claim, and only the end of this process
                # releases them.
                self._tidy.worn = "a claim's answer was lost"
            if called and not found:
                # The wake was for another kind: an idle worker takes it, or this one after this
                # call.
                send(self._spec.report, MoreWork())
                return True
            expires = min(
                (self._claimer.claimed_at + row.good_for for row in rows if row.good_for is not None), default=until
            )
            left = min(until, expires, self._control.lease_deadline - self._spec.settings.lease / 5) - now
            if self._wake.dismissed or self._control.draining:
                return False
            if len(rows) >= self._together[kind] or left <= 0 or self._tidy.worn:
                return True
            called = self._claimer.wakes.rest(epoch, left)

    # -- small things

    def _holding(self) -> list[int]:
        behind = self._in_flight.behind
        return [token for token in (self._in_flight.token, 0 if behind is None else behind[0]) if token]

    def _tell_of_more(self) -> None:
        self._claimer.wakes.pass_on()

    def _ids(self) -> dict[str, object]:
        running = self._executor.running
        if running is None:
            return {}
        ids: dict[str, object] = {"job": running.id, "kind": running.kind, "attempt": running.attempts}
        spans = self._hooks.spans
        if spans is not None and (own := spans.ids(running.id)):
            return ids | own
        origin = None if running.extras is None else self._origin()
        return ids if origin is None else ids | ids_of(origin.traceparent)

    def _origin(self) -> Origin | None:
        """Return the running job, as the parent of the jobs that it enqueues.

        A record of an application's own table is not a job.
        """
        running = self._executor.running
        if running is None or running.kind not in self._claimer.handlers:
            return None
        if self._told is None or self._told.job != running.id:  # Read once, however many jobs the job enqueues.
            self._told = Origin(running.id, running.traceparent(), self._session.database, self._spec.settings.schema)
        return self._told
