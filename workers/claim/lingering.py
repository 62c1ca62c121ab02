"""Waits for more jobs of a batch handler's call, and claims each one when it arrives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.workers.ipc.pipes import MoreWork, send
from jobherd.workers.job.row import JobRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.workers.claim.claimer import Claimer
    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.settle.in_flight import InFlightClaim


class Lingering:
    """The waits of a worker's batch calls. sizes: the number of jobs per call, by kind."""

    def __init__(
        self,
        context: ChildContext,
        *,
        session: Session,
        claimer: Claimer,
        in_flight: InFlightClaim,
        state_guard: StateGuard,
        sizes: Mapping[str, int],
    ) -> None:
        self._spec = context.spec
        self._wake = context.wake
        self._interrupts = context.interrupts
        self._session = session
        self._claimer = claimer
        self._in_flight = in_flight
        self._state_guard = state_guard
        self._sizes = sizes

    def wait(self, rows: list[JobRow], until: float) -> bool:
        """Wait for more jobs of the same call, until `until`, and add them to `rows`.

        The wait ends early if the call is full, another queue or kind must be served, or the worker
        must exit. Meanwhile this worker counts as idle, so it is woken for new jobs as other
        workers are. Return whether the jobs may be run.
        """
        if not self._in_flight.settle(more=True):
            return False
        if self._in_flight.is_flushed():
            # The supervisor's request may still be on its way. It must not find one of its jobs in
            # this claim again, for another attempt.
            return True
        control, size, woken = self._spec.control, self._sizes[rows[0].kind], False
        while True:
            epoch, sessions = control.epoch, self._session.sessions
            found = self._claim_more(rows, size - len(rows))
            now = time.monotonic()
            self._interrupts.read()  # A cancellation of a job that this worker did not know yet was ignored.
            if self._session.sessions != sessions:
                # The jobs of that answer are in this claim, and only the end of this process
                # releases them.
                self._state_guard.recycle_reason = "a claim's answer was lost"
            if woken and not found:
                # The wake was for another kind: an idle worker takes it, or this one after this
                # call.
                send(self._spec.report, MoreWork())
                return True
            expires = min(
                (self._claimer.claimed_at + row.good_for for row in rows if row.good_for is not None), default=until
            )
            left = min(until, expires, control.lease_deadline - self._spec.settings.lease / 5) - now
            if self._wake.dismissed or control.draining:
                return False
            if len(rows) >= size or left <= 0 or self._state_guard.recycle_reason:
                return True
            woken = self._claimer.wakes.rest(epoch, left)

    def _claim_more(self, rows: list[JobRow], wanted: int) -> bool:
        """Add jobs of the same kind to the claim. Return whether there were any."""
        claim: dict[str, object] = {
            "supervisor": self._spec.supervisor,
            "child": self._session.child,
            "token": self._in_flight.token,
            "kind": rows[0].kind,
            "wanted": wanted,
        }
        found = self._session.run(*self._claimer.restriction.narrow("claim/claim_more", claim))
        # What the database returned about these jobs counts from now, not from the first claim.
        since = time.monotonic() - self._claimer.claimed_at
        for row in map(JobRow._make, found):
            good_for = None if row.good_for is None else row.good_for + since
            rows.append(row._replace(good_for=good_for, waited=row.waited - since))
            self._in_flight.held.add(row.id)
        self._spec.board.count_claim(empty=not found)
        return bool(found)
