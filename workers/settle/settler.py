"""From outcomes to rows: the one place that knows the parameters of a settlement.

What cannot be written down must still end its job. So a settlement that the database refuses is taken apart job by job, and what is
refused alone is written once more with fixed words and nothing of the handler's. If even that is refused the job is left to the parent,
which releases it when this child, on its way out for that reason, is dead. A settlement under a lost claim changes nothing and is logged.
"""

from __future__ import annotations

import logging
import time
from enum import IntEnum
from typing import TYPE_CHECKING

import psycopg

from jobherd.workers.database.connection import is_away
from jobherd.workers.job.finished import Finished, is_plain, least_of, settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.workers.database.connection import Parameters, Row, Session

_log = logging.getLogger("jobherd.settle")


class ParentWrites(IntEnum):
    """What the parent may have written of the outcomes of a claim while its child had it in hand."""

    NONE = 0
    EARLIER = 1
    """Those of all jobs but the last that has run: the claim goes on, and if it stands that one is still to be written."""
    ANY = 2
    """Any of them; others of the claim may have been given back."""


def _untouched() -> ParentWrites:
    return ParentWrites.NONE


def _nobody() -> None:
    return


class UnsettledError(Exception):
    """Outcomes could not be written in any form; the jobs are the parent's now."""


class Settler:
    """Writes outcomes through a session, under the fence of their claim.

    ran_on: who ran the jobs, host/pid, for people. on_lost: called once a claim is found to be lost.
    """

    def __init__(self, session: Session, *, ran_on: str, on_lost: Callable[[], None] = _nobody) -> None:
        self._session = session
        self._ran_on = ran_on
        self._on_lost = on_lost

    def settle(self, token: int, finished: Sequence[Finished], *, touched: Callable[[], ParentWrites] = _untouched) -> bool:
        """Write what became of these jobs of one claim, however long the database is away. Raises UnsettledError, or Left for an orphan.

        touched: says what of it the parent may have written. Asked once the answer is there: whoever asked before would take for lost what
            the parent wrote meanwhile.
        Return whether the claim still stood; a settlement whose answer was lost looks as if it did not.
        """
        return self._report_lost(token, finished, self._settle(token, finished), touched=touched)

    def settle_and_claim(
        self,
        token: int,
        finished: Sequence[Finished],
        claim: Parameters,
        *,
        by: str = "claim_jobs",
        touched: Callable[[], ParentWrites] = _untouched,
    ) -> list[Row] | None:
        """Write what became of these jobs and claim the next ones, in one round trip.

        by: the statement that claims, which is handed `claim`; its rows are those of claim_jobs.sql.
        Returns the claimed rows, or None if only the settlement was possible: then ask again. Raises as `settle`.
        """
        whole = not touched() and is_plain(finished)
        statement = "settle_completed" if whole else "settle_jobs"
        session = self._session.sessions
        settled: list[Row] | Exception
        claimed: list[Row] | Exception | None
        try:
            settled, claimed = self._session.run_both(statement, self._parameters(token, finished), by, claim)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            # Not executed, or executed and not heard of; the fence makes asking again harmless, and a claim that nobody has heard of is
            # given back with the new session.
            settled, claimed = problem, None
        if not whole and not isinstance(settled, Exception):
            self._report_lost(token, finished, settled, touched=touched)
        else:
            self._make_sure(token, finished, settled, touched=touched)
        # Jobs that were given back with a new session, which the settling took, are not ours to run.
        return None if isinstance(claimed, Exception) or self._session.sessions != session else claimed

    def claim_ahead(self, token: int, finished: Sequence[Finished], claim: Parameters, *, by: str) -> list[Row] | None:
        """Claim the next jobs, and send what became of these, which all went well, behind that claim: its fsync is not waited for.

        `make_sure` must follow, as soon as there is no next job or a long one. Returns the claimed rows, or None: then ask again.
        """
        try:
            claimed = self._session.run_ahead(by, claim, "settle_completed", self._parameters(token, finished))
        except (psycopg.Error, ValueError, OverflowError):
            return None
        return None if isinstance(claimed, psycopg.Error) else claimed

    def make_sure(self, token: int, finished: Sequence[Finished], *, touched: Callable[[], ParentWrites] = _untouched) -> None:
        """Wait for what `claim_ahead` has sent, and write what it has not written. Raises as `settle`."""
        self._make_sure(token, finished, self._session.hear(), touched=touched)

    def _make_sure(
        self, token: int, finished: Sequence[Finished], said: list[Row] | Exception, *, touched: Callable[[], ParentWrites]
    ) -> None:
        """Look at the answer to settle_completed.sql, or to whatever is an Exception."""
        if isinstance(said, Exception) and not (isinstance(said, psycopg.Error) and is_away(said)):
            _log.warning("a settlement was refused, writing it job by job: %s", type(said).__name__, extra={"token": token})
        if isinstance(said, Exception) or not said:  # or it is not the whole claim, or not ours any more
            self.settle(token, finished, touched=touched)

    def _settle(self, token: int, finished: Sequence[Finished]) -> list[Row]:
        try:
            return self._session.run("settle_jobs", self._parameters(token, finished), patient=True)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            if len(finished) > 1:
                return [row for one in finished for row in self._settle(token, [one])]
            _log.warning(
                "an outcome cannot be stored (%s), writing the least of it",
                _kind_of(problem),
                extra={"job": finished[0].job, "token": token},
            )
        try:
            return self._session.run("settle_jobs", self._parameters(token, [least_of(finished[0])]), patient=True)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            message = f"job {finished[0].job} cannot be settled: {_kind_of(problem)}"
            raise UnsettledError(message) from problem

    def _parameters(self, token: int, finished: Sequence[Finished]) -> dict[str, object]:
        return settlement(self._session.child, token, finished, ran_on=self._ran_on, now=time.monotonic())

    def _report_lost(
        self, token: int, finished: Sequence[Finished], settled: Sequence[Row], *, touched: Callable[[], ParentWrites]
    ) -> bool:
        if len(settled) == len(finished):
            return True
        written = {row[0] for row in settled}
        touch = touched()
        if touch is ParentWrites.EARLIER and finished[-1].job in written:
            return True
        if touch is ParentWrites.ANY:
            if not settled:  # it may have been lost as well, but then the parent was told so too
                _log.info("the parent has written what became of %d jobs", len(finished), extra={"token": token})
            return True
        lost = [one.job for one in finished if one.job not in written]
        _log.warning(
            "the claim of %d jobs was lost, what became of them was not written", len(lost),
            extra={"token": token, "jobs": ",".join(map(str, lost[:50]))},
        )  # fmt: skip
        self._on_lost()
        return False


def _kind_of(problem: BaseException) -> str:
    code = getattr(problem, "sqlstate", None)
    return f"{type(problem).__name__} {code}" if code else type(problem).__name__
