"""Records outcomes in the database, job by job or minimally if the database rejects them.

No other module builds the parameters of a settlement for a worker.

An outcome that cannot be stored must still end its job. If the database rejects a settlement, it is
repeated job by job. A job that is rejected on its own is written once more with fixed words and
nothing from the handler. If even that is rejected, the worker exits and the supervisor releases the
job once the worker is dead. A settlement under a lost claim changes nothing and is logged.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psycopg

from jobherd.workers.database.errors import error_name, is_retryable
from jobherd.workers.job.finished import Finished, is_plain, least_of, settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.workers.database.connection import Session
    from jobherd.workers.database.opening import Row
    from jobherd.workers.database.reconnecting import Parameters

    Own = Callable[[Sequence[Finished]], Sequence[Finished]]

_log = logging.getLogger("jobherd.settle")


def _all(finished: Sequence[Finished]) -> Sequence[Finished]:
    return finished


def _do_nothing() -> None:
    return


def _whole(*, members: bool) -> str:
    """Return the statement that records a whole claim of which every job succeeded."""
    return "settle/settle_members" if members else "settle/settle_completed"


class UnsettledError(Exception):
    """Outcomes could not be recorded in any form. The supervisor takes over the jobs."""


class Settler:
    """Records outcomes through a session, under the fencing token of their claim.

    Args:
        ran_on: `host/pid` of the process that ran the jobs, for display.
        on_lost: called when a claim turns out to be lost.
    """

    def __init__(self, session: Session, *, ran_on: str, on_lost: Callable[[], None] = _do_nothing) -> None:
        self._session = session
        self._ran_on = ran_on
        self._on_lost = on_lost

    def settle(self, token: int, finished: Sequence[Finished], *, own: Own = _all) -> bool:
        """Record the outcomes of these jobs of one claim, however long the database is away.

        own: returns those of the outcomes that only this worker can have recorded. If one of them
            is missing from the answer, the claim is lost. It is called after the answer arrives: an
            earlier call would mistake what the supervisor recorded meanwhile for lost.

        Returns whether the claim was still valid. A settlement whose answer was lost looks as if it
        was not. Raises UnsettledError, or StopWaiting if the supervisor is dead.
        """
        return self._report_lost(token, finished, self._settle(token, finished), own=own)

    def settle_and_claim(
        self,
        token: int,
        finished: Sequence[Finished],
        claim: Parameters,
        *,
        by: str = "claim/claim_jobs",
        own: Own = _all,
        members: bool = False,
    ) -> list[Row] | None:
        """Record the outcomes of these jobs and claim the next ones, in one round trip.

        by: the statement that claims, with the parameters `claim`.
        members: whether jobs of the claim belong to flows or are waited for.

        Returns the rows of `by`, for `claimed_jobs`, or None if only the settlement was possible:
        then call again. Raises as `settle`.
        """
        whole = len(own(finished)) == len(finished) and is_plain(finished)
        statement = _whole(members=members) if whole else "settle/settle_jobs"
        session = self._session.sessions
        settled: list[Row] | Exception
        claimed: list[Row] | Exception | None
        try:
            settled, claimed = self._session.run_both(statement, self._parameters(token, finished), by, claim)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            # Either not executed, or executed without an answer. The fencing token makes a
            # repetition harmless, and the new session releases a claim whose answer was lost.
            settled, claimed = problem, None
        if not whole and not isinstance(settled, Exception):
            self._report_lost(token, finished, settled, own=own)
        else:
            self._make_sure(token, finished, settled, own=own)
        # If `_make_sure` opened a new session, that session released the claimed jobs, so they must
        # not run.
        return None if isinstance(claimed, Exception) or self._session.sessions != session else claimed

    def claim_ahead(
        self, token: int, finished: Sequence[Finished], claim: Parameters, *, by: str, members: bool = False
    ) -> list[Row] | None:
        """Claim the next jobs, and send the outcomes of these jobs behind the claim.

        All of these jobs must have succeeded. The call does not wait for the fsync of their
        settlement. `make_sure` must follow as soon as there is no next job, or a long one. Returns
        the claimed rows, or None: then call again.
        """
        try:
            claimed = self._session.run_ahead(by, claim, _whole(members=members), self._parameters(token, finished))
        except (psycopg.Error, ValueError, OverflowError):
            return None
        return None if isinstance(claimed, psycopg.Error) else claimed

    def make_sure(self, token: int, finished: Sequence[Finished], *, own: Own = _all) -> None:
        """Wait for the settlement that `claim_ahead` sent, and record what it did not.

        Raises as `settle`.
        """
        self._make_sure(token, finished, self._session.second_response(), own=own)

    def _make_sure(
        self,
        token: int,
        finished: Sequence[Finished],
        said: list[Row] | Exception,
        *,
        own: Own,
    ) -> None:
        """Check an answer to settle_completed.sql or settle_members.sql, or an exception of any statement."""
        if isinstance(said, Exception) and not (isinstance(said, psycopg.Error) and is_retryable(said)):
            _log.warning(
                "the database rejected the outcomes of a claim, writing them job by job: %s",
                type(said).__name__,
                extra={"token": token},
            )
        if isinstance(said, Exception) or not said:  # No rows: these are not all jobs of the claim, or it is lost.
            self.settle(token, finished, own=own)

    def _settle(self, token: int, finished: Sequence[Finished]) -> list[Row]:
        try:
            return self._session.run("settle/settle_jobs", self._parameters(token, finished), patient=True)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            if len(finished) > 1:
                return [row for one in finished for row in self._settle(token, [one])]
            _log.warning(
                "an outcome cannot be stored (%s), writing a minimal one",
                error_name(problem),
                extra={"job": finished[0].job, "token": token},
            )
        try:
            return self._session.run(
                "settle/settle_jobs", self._parameters(token, [least_of(finished[0])]), patient=True
            )
        except (psycopg.Error, ValueError, OverflowError) as problem:
            message = f"job {finished[0].job} cannot be settled: {error_name(problem)}"
            raise UnsettledError(message) from problem

    def _parameters(self, token: int, finished: Sequence[Finished]) -> dict[str, object]:
        return settlement(self._session.child, token, finished, ran_on=self._ran_on, now=time.monotonic())

    def _report_lost(self, token: int, finished: Sequence[Finished], settled: Sequence[Row], *, own: Own) -> bool:
        if len(settled) == len(finished):
            return True
        written = {row[0] for row in settled}
        if all(one.job in written for one in own(finished)):
            if not settled:  # The claim may be lost as well, but then the supervisor was notified too.
                _log.info("the supervisor has written the outcomes of %d jobs", len(finished), extra={"token": token})
            return True
        lost = [one.job for one in finished if one.job not in written]
        _log.warning(
            "the claim of %d jobs was lost, so their outcome was not written", len(lost),
            extra={"token": token, "jobs": ",".join(map(str, lost[:50]))},
        )  # fmt: skip
        self._on_lost()
        return False
