"""What a worker has in hand: the claim it works on, and what became of its jobs as far as that is not written yet.

A claim that was made is always ended: each of its jobs is noted here with its outcome or as handed back, and what is noted is settled, in
front of the next claim, behind it, or by itself. Behind it, the jobs of the next claim run while the server writes and the disk confirms: until the
answer was heard both claims are in hand, and both stand on the board. It decides nothing: when to settle and what to run is the worker's.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from jobherd.workers.ipc.status_board import CurrentWork, Phase, Reason
from jobherd.workers.job.finished import is_plain
from jobherd.workers.settle.settler import ParentWrites
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.workers.database.connection import Row, Session
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.run.executor import Executor
    from jobherd.workers.settle.settler import Settler

_log = logging.getLogger("jobherd.worker")


class InFlightClaim:
    """The claim in hand.

    token: of the claim; 0: there is none.
    held: the ids of its jobs.
    unsettled: what became of those that are through, and is not written.
    first_at: monotonic time of the first of these.
    behind: the claim before and what became of it, which was sent, and whose answer was not heard yet; None: there is none.
    """

    def __init__(self, session: Session, settler: Settler, board: StatusBoard, interrupts: Interrupts, executor: Executor) -> None:
        self.token = 0
        self.held: set[int] = set()
        self.unsettled: list[Finished] = []
        self.first_at = 0.0
        self.behind: tuple[int, Sequence[Finished]] | None = None
        self._on_board = True
        """All that is not settled stands on the board too."""
        self._claimed_in = 0
        """The session in which it was claimed."""
        self._session = session
        self._settler = settler
        self._board, self._outcomes = board, board.outcomes
        self._interrupts = interrupts
        self._executor = executor

    def take(self, batch: Sequence[JobRow]) -> None:
        """These jobs were claimed, and begin now."""
        self.held = {row.id for row in batch}
        self._claimed_in = self._session.sessions
        self._interrupts.begin(self.token, self.held)
        self._board.begin_claim(self.token, len(batch) - 1)

    def enter(self, finished: Finished, *, more: bool) -> bool:
        """Note what became of a job, on the board too, before the next one starts: should this process die, it is not run again.

        Return whether the claim still stands, as far as that was seen.
        """
        self.note(finished)
        try:
            entered = self._outcomes.enter(finished.as_entry())
        except (TypeError, ValueError):
            entered = False
        if not entered:
            self._on_board = False
        reach("job.entered")
        return entered or not more or self.settle(more=True)

    def note(self, finished: Finished) -> None:
        """Note what became of a job."""
        if not self.unsettled:
            self.first_at = finished.ended or time.monotonic()
            self._board.say_unwritten(self.first_at)
        self.unsettled.append(finished)

    def hand_back(self, rows: Sequence[JobRow]) -> None:
        """Note that these jobs were not started."""
        told = self._interrupts.told
        for row in rows:
            self.note(self._executor.unstarted(row, cancelled=told.get(row.id) is Reason.CANCEL))

    def settle(self, *, more: bool = False) -> bool:
        """Write what is not written; return whether the claim stood. `more`: further jobs of the claim are still to run."""
        self.make_sure()
        whole = True
        if self.unsettled:
            # Or the board says that a job runs, for as long as the database is away, and the parent ends it at its deadline.
            self.say(Phase.SETTLING, keep_job=True)
            whole = self._settler.settle(self.token, self.unsettled, touched=self._touched)
            if more:
                self.unsettled, self._on_board = [], True
                self._outcomes.clear()
                self._board.say_unwritten(0.0)
            else:
                self.forget()
        return whole

    def settle_and_claim(self, by: str, claim: Mapping[str, object], *, ahead: bool = False) -> list[Row] | None:
        """Write what is not written and make the next claim, in one round trip; None if there was no claim: then ask again.

        ahead: wait for the claim alone if all went well and stands on the board: should this process die, the parent writes it from there.
        """
        self.make_sure()
        if self._session.sessions != self._claimed_in:
            # The server may have crashed, and swallowed this claim with its number: the next claim may be given the same.
            self.settle()
            return None
        self.say(Phase.SETTLING, keep_job=True)
        if not (ahead and self._on_board and not self._touched() and is_plain(self.unsettled)):
            rows = self._settler.settle_and_claim(self.token, self.unsettled, claim, by=by, touched=self._touched)
            self.forget()
            return rows
        self.behind = self.token, self.unsettled
        rows = self._settler.claim_ahead(self.token, self.unsettled, claim, by=by)
        self.unsettled = []
        self._let_go()
        if not rows or rows[0][0] is None:
            self.make_sure()  # nothing is to be run meanwhile
        return rows

    def make_sure(self) -> None:
        """See to it that the claim before is written, if that was not heard yet."""
        if self.behind is not None:
            token, finished = self.behind
            # As in `settle`: however long this takes, no job runs meanwhile that the parent could end at its deadline.
            self.say(Phase.SETTLING, keep_job=True)
            self._settler.make_sure(token, finished, touched=lambda: self._touched_behind(token))
            self.behind = None
            self._outcomes.close(token)

    def _touched(self) -> ParentWrites:
        """Return what the parent may have written of the claim in hand."""
        board, token = self._board, self.token
        if board.revoked == token:
            return ParentWrites.ANY
        if board.helped != token:
            return ParentWrites.NONE
        # While a job runs, none of those that are through need be the last.
        return ParentWrites.EARLIER if self._executor.running is None else ParentWrites.ANY

    def _touched_behind(self, token: int) -> ParentWrites:
        """Return what it may have written of the claim before: all of it, if it wrote anything of that one or of the one in hand."""
        board, claims = self._board, {token, self.token} - {0}
        return ParentWrites.ANY if board.revoked in claims or board.helped in claims else ParentWrites.NONE

    def lose(self, jobs: int) -> None:
        """The claim is somebody else's: so many of its jobs are dropped, and what is not written with them."""
        _log.warning("the claim was lost, dropping %d jobs of it", jobs, extra={"token": self.token})
        self.forget()

    def forget(self) -> None:
        """The claim is over."""
        self.unsettled = []
        self._outcomes.close(self.token)
        self._let_go()

    def _let_go(self) -> None:
        """The claim is in hand no more."""
        self.token = 0
        self._on_board = True
        self._interrupts.end()
        self._board.set_held(0)

    def say(self, phase: Phase, *, keep_job: bool = False) -> None:
        """Say on the board what this child is at; `keep_job`: still with the job of the claim that ran last."""
        if keep_job and (now := self._board.now()) is not None and now.token == self.token:
            # If the process dies before the outcome is written, the attempt must count as one that ran.
            self._board.say(now._replace(phase=phase))
        else:
            self._board.say(CurrentWork(phase, self._session.child))
