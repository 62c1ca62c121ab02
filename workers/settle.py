"""From outcomes to rows: the one place that knows the parameters of a settlement.

What cannot be written down must still end its job. So a settlement that the database refuses is taken apart job by job, and what is
refused alone is written once more with fixed words and nothing of the handler's. If even that is refused the job is left to the parent,
which releases it when this child, on its way out for that reason, is dead. A settlement under a lost claim changes nothing and is logged.
"""

from __future__ import annotations

import logging
import struct
import time
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import orjson
import psycopg

from handlers._outcome import OK, UNHANDLED_ERROR, WORKER_SERIALIZATION_ERROR, Outcome, State
from workers.connection import is_away

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.connection import Parameters, Row, Session

_log = logging.getLogger("jobherd.settle")

HANDED_BACK: Final = Outcome("abandoned", "ready", counted=False)
"""Of a job that was claimed and never started."""
STATE_OF: Final[dict[str, State]] = {
    "ok": "completed", "retry": "scheduled", "failed": "failed", "poison": "failed", "snoozed": "scheduled", "abandoned": "ready",
    "cancelled": "cancelled", "expired": "expired",
}  # fmt: skip
_PLAIN: Final = struct.Struct("<cqddi")
_PLAIN_MARK: Final = b"="
"""A ledger's entry of a job that went well and returned nothing, as most do; all others are JSON."""
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
    post_mortem: str | None = None
    """How its process died, if it did: written by the parent."""
    crashed: int = 0
    log: str | None = None
    """What it printed and logged, as `output.digest` returns it; None: nothing."""

    def as_entry(self) -> bytes:
        """Return it as the board's ledger holds it, from where the parent settles it should this process die. Raises as orjson does."""
        job, said, ran, ended, keep, usage, progress, _, _, log = self
        if said is OK and usage is None and progress is None and ran is not None and log is None:
            return _PLAIN.pack(_PLAIN_MARK, job, ran, ended, keep)
        return orjson.dumps(
            (job, said.label, said.delay, said.result, said.code, said.error, said.traceback, ran, ended, keep, usage, progress, log)
        )

    @classmethod
    def from_entry(cls, entry: bytes) -> Self:
        """Return what `as_entry` was asked of. Raises ValueError if it is something else."""
        if entry.startswith(_PLAIN_MARK):
            _, job, ran, ended, keep = _PLAIN.unpack(entry)
            return cls(job, OK, ran, ended, keep)
        job, label, delay, result, code, error, traceback, ran, ended, keep, usage, progress, log = orjson.loads(entry)
        outcome = Outcome(label, STATE_OF[label], delay=delay, result=result, code=code, error=error, traceback=traceback)
        return cls(job, outcome, ran=ran, ended=ended, keep=keep, usage=usage, progress=progress, log=log)


class Touch(IntEnum):
    """What the parent may have written of the outcomes of a claim while its child had it in hand."""

    NONE = 0
    EARLIER = 1
    """Those of all jobs but the last that has run: the claim goes on, and if it stands that one is still to be written."""
    ANY = 2
    """Any of them; others of the claim may have been given back."""


def _untouched() -> Touch:
    return Touch.NONE


def _nobody() -> None:
    return


class UnsettledError(Exception):
    """Outcomes could not be written in any form; the jobs are the parent's now."""


class Clerk:
    """Writes outcomes through a session, under the fence of their claim.

    ran_on: who ran the jobs, host/pid, for people. on_lost: called once a claim is found to be lost.
    """

    def __init__(self, session: Session, *, ran_on: str, on_lost: Callable[[], None] = _nobody) -> None:
        self._session = session
        self._ran_on = ran_on
        self._on_lost = on_lost

    def settle(self, token: int, finished: Sequence[Finished], *, touched: Callable[[], Touch] = _untouched) -> bool:
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
        touched: Callable[[], Touch] = _untouched,
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

    def make_sure(self, token: int, finished: Sequence[Finished], *, touched: Callable[[], Touch] = _untouched) -> None:
        """Wait for what `claim_ahead` has sent, and write what it has not written. Raises as `settle`."""
        self._make_sure(token, finished, self._session.hear(), touched=touched)

    def _make_sure(self, token: int, finished: Sequence[Finished], said: list[Row] | Exception, *, touched: Callable[[], Touch]) -> None:
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

    def _report_lost(self, token: int, finished: Sequence[Finished], settled: Sequence[Row], *, touched: Callable[[], Touch]) -> bool:
        if len(settled) == len(finished):
            return True
        written = {row[0] for row in settled}
        touch = touched()
        if touch is Touch.EARLIER and finished[-1].job in written:
            return True
        if touch is Touch.ANY:
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


def is_plain(finished: Sequence[Finished]) -> bool:
    """Return whether settle_completed.sql can say what became of them."""
    return all(one.outcome.label == "ok" and one.log is None for one in finished)


def settlement(child: int, token: int, finished: Sequence[Finished], *, ran_on: str, now: float) -> dict[str, object]:
    """Return the parameters of settle_jobs.sql for some jobs of one claim. `now` is monotonic, as their ends are."""
    jobs, outcomes, ran, ended, keeps, usages, progresses, post_mortems, crashes, logs = map(list, zip(*finished, strict=True))
    plain = outcomes.count(OK) == len(outcomes)  # nothing to say of any but that it is through: most batches
    return {
        "child": child,
        "token": token,
        "ran_on": ran_on,
        "ids": jobs,
        "outcomes": None if plain else [outcome.label for outcome in outcomes],
        "delays": None if plain else _some([outcome.delay or None for outcome in outcomes]),
        "results": None if plain else _some([outcome.result for outcome in outcomes]),
        "codes": None if plain else _some([outcome.code for outcome in outcomes]),
        "errors": None if plain else _some([outcome.error for outcome in outcomes]),
        "tracebacks": None if plain else _some([outcome.traceback for outcome in outcomes]),
        "ran": _some(ran),
        "ago": [max(0.0, now - end) if end else 0.0 for end in ended],
        "usages": _some(usages),
        "progresses": _some(progresses),
        "post_mortems": _some(post_mortems),
        "crashes": crashes if any(crashes) else None,
        "keeps": keeps,
        "logs": _some(logs),
    }


def with_class(usage: str | None, outcome: Outcome) -> str | None:
    """Return what an attempt used, and with it the class of its error, if it has one. See migrations/0088."""
    if outcome.error_class is None:
        return usage
    named = orjson.dumps({"error_class": outcome.error_class}).decode()
    return named if usage is None else f"{usage[:-1]},{named[1:]}"


def _some(values: list[Any]) -> list[Any] | None:
    """Return None for a list of nothing but None: it costs the driver nothing, and `unnest` fills it up."""
    return None if values.count(None) == len(values) else values


def least_of(one: Finished) -> Finished:
    """Return what can be said of an outcome in fixed words, with nothing in it that came from the handler, or from clocks it may have moved."""
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
    return one._replace(outcome=least, ran=None if one.ran is None else 0.0, ended=0.0, usage=None, progress=None, log=None)


def _kind_of(problem: BaseException) -> str:
    code = getattr(problem, "sqlstate", None)
    return f"{type(problem).__name__} {code}" if code else type(problem).__name__
