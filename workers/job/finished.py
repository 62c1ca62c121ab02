"""A finished job: its outcome as a value, and the parameters of the statement that records it.

It talks to no database.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import orjson

from jobherd.handlers._values.outcome import LABELS, OK, UNHANDLED_ERROR, WORKER_SERIALIZATION_ERROR, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence


RELEASED: Final = Outcome("abandoned")
"""Outcome of a job that was claimed and never started."""


_PLAIN: Final = struct.Struct("<cqddi")


_PLAIN_MARK: Final = b"="
"""First byte of the outcome buffer's entry for a job that succeeded and returned nothing, which is
the usual case. All other entries are JSON.
"""


_OKS: Final = repeat(OK)
_NONES: Final = repeat(None)


CANCELLED_BEFORE: Final = Outcome("cancelled", started=False, code="JOB_CANCELLED", error="cancelled before it started")


class Finished(NamedTuple):
    """One job of a claim, and its outcome."""

    job: int
    outcome: Outcome
    ran: float | None = None
    """Seconds from its start to its end. None: it never started."""
    ended: float = 0.0
    """Monotonic time of its end."""
    keep: int = 30
    """Days that its row is kept."""
    usage: str | None = None
    progress: str | None = None
    post_mortem: str | None = None
    """How its process died, if it did. The supervisor writes it."""
    crashed: int = 0
    log: str | None = None
    """What the job printed and logged, as `captured.digest` returns it. None: nothing."""

    def as_entry(self) -> bytes:
        """Return it as an entry of the outcome buffer. Raises as orjson does.

        The supervisor settles the job from that entry if this process dies.
        """
        job, said, ran, ended, keep, usage, progress, _, _, log = self
        if said is OK and usage is None and progress is None and ran is not None and log is None:
            return _PLAIN.pack(_PLAIN_MARK, job, ran, ended, keep)
        return orjson.dumps(
            (
                job,
                said.label,
                said.delay,
                said.result,
                said.code,
                said.error,
                said.traceback,
                ran,
                ended,
                keep,
                usage,
                progress,
                log,
            )
        )

    @classmethod
    def from_entry(cls, entry: bytes) -> Self:
        """Return the value that `as_entry` encoded. Raises ValueError for any other entry."""
        if entry.startswith(_PLAIN_MARK):
            _, job, ran, ended, keep = _PLAIN.unpack(entry)
            return cls(job, OK, ran, ended, keep)
        job, label, delay, result, code, error, traceback, ran, ended, keep, usage, progress, log = orjson.loads(entry)
        if label not in LABELS:  # settle_jobs.sql would drop the job
            message = f"the outcome buffer has an entry with the label {label!r:.40}"
            raise ValueError(message)
        outcome = Outcome(label, delay=delay, result=result, code=code, error=error, traceback=traceback)
        return cls(job, outcome, ran=ran, ended=ended, keep=keep, usage=usage, progress=progress, log=log)


_FINISHED: Final = partial(tuple.__new__, Finished)
"""`Finished._make`, at a third of its cost."""


def plain_of(jobs: list[int], ran: list[float], ended: list[float], keep: int) -> list[Finished]:
    """Return the outcomes of jobs that succeeded and returned nothing."""
    columns = zip(jobs, _OKS, ran, ended, repeat(keep), _NONES, _NONES, _NONES, repeat(0), _NONES, strict=False)
    return list(map(_FINISHED, columns))


def is_plain(finished: Sequence[Finished]) -> bool:
    """Return whether settle_completed.sql and settle_members.sql can record these outcomes."""
    return all(one.outcome.label == "ok" and one.log is None for one in finished)


def settlement(child: int, token: int, finished: Sequence[Finished], *, ran_on: str, now: float) -> dict[str, object]:
    """Return the parameters of settle_jobs.sql for some jobs of one claim.

    now: monotonic, as the ends of the jobs are.
    """
    jobs, outcomes, ran, ended, keeps, usages, progresses, post_mortems, crashes, logs = map(
        list, zip(*finished, strict=True)
    )
    plain = outcomes.count(OK) == len(outcomes)  # True for most claims: every job succeeded without a result.
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
    """Return the resource usage of an attempt, with the class of its error added if it has one.

    See sql/schema/44_views.sql.
    """
    if outcome.error_class is None:
        return usage
    named = orjson.dumps({"error_class": outcome.error_class}).decode()
    return named if usage is None else f"{usage[:-1]},{named[1:]}"


def _some(values: list[Any]) -> list[Any] | None:
    """Return None for a list that holds only None.

    None costs the driver nothing, and `unnest` fills the column.
    """
    return None if values.count(None) == len(values) else values


def least_of(one: Finished) -> Finished:
    """Return the outcome in fixed words.

    It contains nothing that came from the handler, or from clocks that the handler may have
    changed.
    """
    outcome = one.outcome
    if outcome.label == "ok":
        least = Outcome(
            "failed",
            code=WORKER_SERIALIZATION_ERROR,
            error="the handler has finished, but its result could not be stored",
        )
    elif outcome.failed:
        least = Outcome(
            outcome.label,
            delay=outcome.delay,
            code=UNHANDLED_ERROR,
            error="the attempt failed, and the database rejected the text of its error",
        )
    else:
        least = replace(outcome, result=None, error=None, code=None, traceback=None)
    return one._replace(
        outcome=least, ran=None if one.ran is None else 0.0, ended=0.0, usage=None, progress=None, log=None
    )
