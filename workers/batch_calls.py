"""Runs the calls of batch handlers: gathers the jobs of a call, runs them, enters their outcomes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.workers.claim.lingering import Lingering
from jobherd.workers.run.gathering import Gathering

if TYPE_CHECKING:
    from jobherd.workers.claim.claimer import Claimer
    from jobherd.workers.database.connection import Session
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.run.batch import BatchExecutor
    from jobherd.workers.settle.in_flight import InFlightClaim


class BatchCalls:
    """Runs a worker's calls of batch handlers. kinds: of these handlers."""

    def __init__(
        self,
        context: ChildContext,
        *,
        session: Session,
        claimer: Claimer,
        executor: BatchExecutor,
        in_flight: InFlightClaim,
        state_guard: StateGuard,
    ) -> None:
        self.kinds = executor.sizes.keys()
        self._board = context.spec.board
        self._interrupts = context.interrupts
        self._claimer = claimer
        self._executor = executor
        self._in_flight = in_flight
        self._state_guard = state_guard
        self._gathering = Gathering(executor.kinds, executor.sizes)
        self._lingering = Lingering(
            context,
            session=session,
            claimer=claimer,
            in_flight=in_flight,
            state_guard=state_guard,
            sizes=executor.sizes,
        )

    def work(self, batch: list[JobRow], place: int) -> bool:
        """Call the batch handler of the job at `place` with all jobs that fit into its call.

        These jobs are taken out of the claim. Return whether to continue with the claim.
        """
        rows = self._gathering.gather(batch, place, self._interrupts.pending)
        among = place + 1 < len(batch)
        linger = self._executor.kinds[rows[0].kind].handler.policy.linger
        lingers = linger and not among and not rows[-1].more and not self._gathering.is_called_alone(rows[0])
        if lingers and not self._lingering.wait(rows, time.monotonic() + linger):
            self._in_flight.release_unstarted(rows)
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
                return self.work(batch, place)
            finished = [self._executor.recorder.reject(rows[0], problem)]
        self._state_guard.examine()
        if finished is None:
            self._in_flight.drop_lost(len(rows) + len(batch) - place - 1)
            return False
        valid = True
        for one in finished:
            valid = valid and self._in_flight.enter(one, more=among)
        self._executor.recorder.job_log.write()
        self._state_guard.restore(rows[0].kind, time.monotonic())
        if not valid or (among and self._in_flight.is_released(self._in_flight.token)):
            self._in_flight.release_unstarted(batch[place + 1 :])
            return False
        return True
