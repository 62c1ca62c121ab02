"""The claim that a worker holds, and the outcomes of its jobs that are not recorded yet.

Invariant: every claim is completed. This module notes the outcome of each job, or that the job is
released. All noted outcomes are settled: before the next claim, right after it, or separately. If
the settlement is sent right after the next claim, that claim's jobs run while the server writes and
the disk confirms. Until the answer arrives, both claims are in flight and both are on the status
board. The worker decides when to settle and what to run.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from jobherd.workers.ipc.current_work import CurrentWork, Phase, Reason
from jobherd.workers.job.finished import Finished, is_plain, plain_of
from jobherd.workers.settle.member_ends import has_members
from jobherd.workers.system.failpoints import armed, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.workers.database.connection import Session
    from jobherd.workers.database.opening import Row
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.settle.member_ends import MemberEnds
    from jobherd.workers.settle.settler import Settler

_log = logging.getLogger("jobherd.worker")


class InFlightClaim:
    """The in-flight claim.

    token: fencing token of the claim. 0: there is no claim.
    held: the ids of its jobs.
    unsettled: outcomes of its finished jobs that are not recorded.
    first_at: monotonic time of the first of these outcomes.
    ends: reports the ends of jobs for which others may wait.
    behind: the previous claim's token and outcomes, if their settlement was sent and not answered
    yet. None: there is none.
    """

    def __init__(
        self,
        session: Session,
        settler: Settler,
        board: StatusBoard,
        interrupts: Interrupts,
        *,
        unstarted: Callable[[JobRow, bool], Finished],
        is_running: Callable[[], bool],
        ends: MemberEnds,
    ) -> None:
        self.ends = ends
        self._has_members = self._had_members = False
        """Whether jobs of this claim, and of that in `behind`, belong to flows or are waited for."""
        self.token = 0
        self.held: set[int] = set()
        self.unsettled: list[Finished] = []
        self.first_at = 0.0
        self.behind: tuple[int, Sequence[Finished]] | None = None
        self._on_board = True
        """Whether all unsettled outcomes are also in the outcome buffer."""
        self._claimed_in = 0
        """Number of the session that made the claim."""
        self._session = session
        self._settler = settler
        self._board, self._outcomes = board, board.outcomes
        self._interrupts = interrupts
        self._unstarted = unstarted
        self._is_running = is_running

    def take(self, batch: Sequence[JobRow]) -> None:
        """Note that these jobs were claimed and start now."""
        self.held = {row.id for row in batch}
        self._has_members = has_members(batch)
        self._claimed_in = self._session.sessions
        self._interrupts.begin(self.token, self.held)
        self._board.begin_claim(self.token, len(batch) - 1)

    def enter(self, finished: Finished, *, more: bool) -> bool:
        """Note the outcome of a job, in the outcome buffer too, before the next job starts.

        If this process dies, the supervisor records the outcome from there, and the job is not run
        again. Return whether the claim is still valid, as far as was seen.
        """
        if self.unsettled:  # as in `note`, which would be a call for each job
            self.unsettled.append(finished)
        else:
            self.note(finished)
        try:
            entered = self._outcomes.enter(finished.as_entry())
        except (TypeError, ValueError):
            entered = False
        if not entered:
            self._on_board = False
        if armed:
            reach("job.entered")
        return entered or not more or self.settle(more=True)

    def note_first(self, ended: float) -> None:
        """Note the end of the first job of which an outcome is not recorded."""
        self.first_at = ended
        self._board.say_unwritten(ended)

    def note_plain(self, jobs: list[int], ran: list[float], ended: list[float], keep: int) -> None:
        """Note the outcomes of jobs that succeeded and returned nothing. The job table holds them."""
        self.unsettled += plain_of(jobs, ran, ended, keep)

    def note(self, finished: Finished) -> None:
        """Note the outcome of a job."""
        if not self.unsettled:
            self.note_first(finished.ended or time.monotonic())
        self.unsettled.append(finished)

    def release_unstarted(self, rows: Sequence[JobRow]) -> None:
        """Note that these jobs were not started: they are released."""
        pending = self._interrupts.pending
        for row in rows:
            self.note(self._unstarted(row, pending.get(row.id) is Reason.CANCEL))

    def settle(self, *, more: bool = False) -> bool:
        """Record the noted outcomes and return whether the claim was still valid.

        more: further jobs of the claim will run.
        """
        self.make_sure()
        whole = True
        if self.unsettled:
            # Leave RUNNING first: while the database is down, the supervisor would see the job as
            # running and kill this process at its deadline.
            self.show_phase(Phase.SETTLING, keep_job=True)
            whole = self._settler.settle(self.token, self.unsettled, own=self._own)
            if more:
                if self._has_members:
                    self.ends.note()
                self.unsettled, self._on_board = [], True
                self._outcomes.clear()
                self._board.say_unwritten(0.0)
            else:
                self.forget()
        return whole

    def settle_and_claim(self, by: str, claim: Mapping[str, object], *, ahead: bool = False) -> list[Row] | None:
        """Record the noted outcomes and make the next claim, in one round trip.

        Args:
            by: the statement that claims.
            claim: its parameters.
            ahead: wait for the claim only, if all jobs succeeded and the outcome buffer holds them.
                If this process dies, the supervisor records them from there.

        Returns:
            The claimed rows, or None if there was no claim: then call again.
        """
        self.make_sure()
        if self._session.sessions != self._claimed_in:
            # The server may have crashed and lost this claim with its token. The next claim may
            # then get the same token.
            self.settle()
            return None
        self.show_phase(Phase.SETTLING, keep_job=True)
        if not (ahead and self._on_board and not self._is_shared(self.token) and is_plain(self.unsettled)):
            rows = self._settler.settle_and_claim(
                self.token, self.unsettled, claim, by=by, own=self._own, members=self._has_members
            )
            self.forget()
            return rows
        self.behind = self.token, self.unsettled
        self._had_members, self._has_members = self._has_members, False
        rows = self._settler.claim_ahead(self.token, self.unsettled, claim, by=by, members=self._had_members)
        self.unsettled = []
        self._reset()
        if not rows or rows[0][0] is None:
            self.make_sure()  # No job is going to run in the meantime.
        return rows

    def make_sure(self) -> None:
        """Make sure that the outcomes of the previous claim are recorded, if that is not confirmed yet."""
        if self.behind is not None:
            token, finished = self.behind
            # As in `settle`: however long this takes, the supervisor must not see a job that it
            # would kill at its deadline.
            self.show_phase(Phase.SETTLING, keep_job=True)
            self._settler.make_sure(token, finished, own=lambda finished: self._own_behind(token, finished))
            self.behind = None
            self._outcomes.close(token)
            if self._had_members:
                self._had_members = False
                self.ends.note()

    # -- what the supervisor does with a claim whose running job is a straggler

    def is_released(self, token: int) -> bool:
        """Return whether the supervisor releases the unstarted jobs of that claim: start none."""
        return self._board.revoked == token

    def is_flushed(self) -> bool:
        """Return whether the supervisor may have recorded outcomes of the in-flight claim."""
        return self._board.flushed == self.token

    def _is_shared(self, *claims: int) -> bool:
        """Return whether the supervisor may have recorded an outcome of one of these claims."""
        return self._board.revoked in claims or self._board.flushed in claims

    def _own(self, finished: Sequence[Finished]) -> Sequence[Finished]:
        """Return those outcomes of the in-flight claim that only this worker can have recorded."""
        if not self._is_shared(self.token):
            return finished
        if self.is_released(self.token) or self._is_running():
            return ()
        # The supervisor records no outcome of the job that it sees running, and none of a later
        # job. So the job that ran last was not recorded by the supervisor.
        return finished[-1:]

    def _own_behind(self, token: int, finished: Sequence[Finished]) -> Sequence[Finished]:
        """Return those outcomes of the previous claim that only this worker can have recorded.

        None of them, if the supervisor wrote anything about that claim or the current one.
        """
        return () if self._is_shared(*{token, self.token} - {0}) else finished

    def drop_lost(self, jobs: int) -> None:
        """Drop `jobs` jobs of the claim and its unrecorded outcomes.

        The claim belongs to another worker now.
        """
        _log.warning("the claim was lost, dropping %d jobs of it", jobs, extra={"token": self.token})
        self.forget()

    def forget(self) -> None:
        """Drop the claim, which is complete or lost."""
        self.unsettled = []
        self._outcomes.close(self.token)
        self._reset()

    def _reset(self) -> None:
        """Reset the state of the in-flight claim."""
        self.token = 0
        self._on_board = True
        self._interrupts.end()
        self._board.set_held(0)
        if self._has_members:
            self._has_members = False
            self.ends.note()

    def show_phase(self, phase: Phase, *, keep_job: bool = False) -> None:
        """Show on the status board what this worker does.

        keep_job: still show the job of the claim that ran last.
        """
        if keep_job and (now := self._board.now()) is not None and now.token == self.token:
            # If the process dies before the outcome is recorded, the attempt must count as one that
            # ran.
            self._board.say(now._replace(phase=phase))
        else:
            self._board.say(CurrentWork(phase, self._session.child))
