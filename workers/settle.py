"""From outcomes to rows: the one place that knows the parameters of a settlement.

What cannot be written down must still end its job. So a settlement that the database refuses is taken apart job by job, and what is
refused alone is written once more with fixed words and nothing of the handler's. If even that is refused the job is left to the parent,
which releases it when this child, on its way out for that reason, is dead. A settlement under a lost claim changes nothing and is logged.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from handlers._outcome import UNHANDLED_ERROR, WORKER_SERIALIZATION_ERROR, Outcome
from workers.connection import is_away

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.connection import Parameters, Row, Session

_log = logging.getLogger("jobherd.settle")

HANDED_BACK: Final = Outcome("abandoned", "ready", counted=False)
"""Of a job that was claimed and never started."""
CANCELLED_BEFORE: Final = Outcome("cancelled", "cancelled", counted=False, code="JOB_CANCELLED", error="cancelled before it started")


class Finished(NamedTuple):
    """One job of a claim, and what became of it."""

    job: int
    outcome: Outcome
    ran: float | None = None
    """Seconds from its start to its end; None: it never started."""
    ended: float = 0.0
    """Monotonic time of its end."""
    keep: int = 30
    """Days its row is kept."""
    usage: str | None = None
    progress: str | None = None


class UnsettledError(Exception):
    """Outcomes could not be written in any form; the jobs are the parent's now."""


class Clerk:
    """Writes outcomes through a session, under the fence of their claim.

    ran_on: who ran the jobs, host/pid, for people.
    """

    def __init__(self, session: Session, *, ran_on: str) -> None:
        self._session = session
        self._ran_on = ran_on

    def settle(self, token: int, finished: Sequence[Finished]) -> None:
        """Write what became of these jobs of one claim, however long the database is away. Raises UnsettledError, or Left for an orphan."""
        self._report_lost(token, finished, self._settle(token, finished))

    def settle_and_claim(self, token: int, finished: Sequence[Finished], claim: Parameters) -> list[Row] | None:
        """Write what became of these jobs and claim the next ones, in one transaction and one round trip.

        Returns the claimed rows, or None if only the settlement was possible: then ask again. Raises as `settle`.
        """
        try:
            settled, claimed = self._session.run_both("settle_jobs", self._parameters(token, finished), "claim_jobs", claim)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            # Not executed, or executed and not heard of; the fence makes asking again harmless.
            if not (isinstance(problem, psycopg.Error) and is_away(problem)):
                _log.warning("a settlement was refused, writing it job by job: %s", type(problem).__name__, extra={"token": token})
            self.settle(token, finished)
            return None
        self._report_lost(token, finished, settled)
        return claimed

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
        now = time.monotonic()
        return {
            "child": self._session.child,
            "token": token,
            "ran_on": self._ran_on,
            "ids": [one.job for one in finished],
            "outcomes": [one.outcome.label for one in finished],
            "delays": _some([one.outcome.delay or None for one in finished]),
            "results": _some([one.outcome.result for one in finished]),
            "codes": _some([one.outcome.code for one in finished]),
            "errors": _some([one.outcome.error for one in finished]),
            "tracebacks": _some([one.outcome.traceback for one in finished]),
            "ran": _some([one.ran for one in finished]),
            "ago": [now - one.ended if one.ended else 0.0 for one in finished],
            "usages": _some([one.usage for one in finished]),
            "progresses": _some([one.progress for one in finished]),
            "post_mortems": None,
            "crashes": None,
            "keeps": [one.keep for one in finished],
        }

    @staticmethod
    def _report_lost(token: int, finished: Sequence[Finished], settled: Sequence[Row]) -> None:
        if len(settled) < len(finished):
            written = {row[0] for row in settled}
            lost = [one.job for one in finished if one.job not in written]
            _log.warning(
                "the claim of %d jobs was lost, what became of them was not written", len(lost),
                extra={"token": token, "jobs": ",".join(map(str, lost[:50]))},
            )  # fmt: skip


def _some(values: list[Any]) -> list[Any] | None:
    """Return None for a list of nothing but None: it costs the driver nothing, and `unnest` fills it up."""
    return values if any(value is not None for value in values) else None


def least_of(one: Finished) -> Finished:
    """Return what can be said of an outcome in fixed words, with nothing in it that came from the handler."""
    outcome = one.outcome
    match outcome.label:
        case "ok":
            least = Outcome(
                "failed", "failed", code=WORKER_SERIALIZATION_ERROR, error="the handler finished, but its result could not be stored"
            )
        case "retry" | "failed" | "poison":
            least = Outcome(
                outcome.label,
                outcome.state,
                delay=outcome.delay,
                code=UNHANDLED_ERROR,
                error="the attempt failed, and the database refused the error's own words",
            )
        case _:
            least = replace(outcome, result=None, error=None, code=None, traceback=None)
    return one._replace(outcome=least, usage=None, progress=None)


def _kind_of(problem: BaseException) -> str:
    code = getattr(problem, "sqlstate", None)
    return f"{type(problem).__name__} {code}" if code else type(problem).__name__
