"""Records what remote workers have reported, in the database thread.

A result that the database rejects must not delay the others: they are then recorded one by one, and
what cannot be stored is recorded in fixed words, as in `settle/settler.py`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from jobherd.workers.database.errors import error_name
from jobherd.workers.gateway.actions import TaskRef
from jobherd.workers.job.finished import RELEASED, Finished, least_of, settlement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from jobherd.workers.database.wire import Request
    from jobherd.workers.gateway.database import GatewaySession

_log = logging.getLogger("jobherd.gateway")


class Report(NamedTuple):
    """Results of one claim."""

    child: int
    token: int
    ran_on: str
    finished: tuple[Finished, ...]


class Outgoing(NamedTuple):
    """Results to record in one transaction.

    Attributes:
        rest: results of any kind.
        large: whole claims of which every job completed, each recorded by its own statement.
        small: the same, recorded together.
        requests: the statements, in the order large, small, rest.
    """

    rest: Sequence[Report]
    large: Sequence[Report]
    small: Sequence[Report]
    requests: Sequence[Request]


@dataclass(slots=True)
class Recorded:
    """What has become of reported results.

    Attributes:
        lost: the worker does not own these tasks any more, and their results changed nothing.
        reworded: these outcomes were recorded in fixed words, because the database rejects others.
    """

    lost: set[TaskRef] = field(default_factory=set)
    reworded: set[TaskRef] = field(default_factory=set)


class OutcomeRecorder:
    """Records outcomes through the gateway's session."""

    def __init__(self, session: GatewaySession) -> None:
        self._session = session

    def record(self, outgoing: Outgoing) -> Recorded:
        """Record results in one transaction. Return what became of those that are not recorded as they are."""
        reports, large, small, requests = outgoing
        try:
            answers = self._session.transact(*requests)
        except (psycopg.Error, ValueError, OverflowError) as problem:
            _log.warning("the database rejected results, writing them one by one: %s", error_name(problem))
            return self._record_singly((*large, *small, *reports))
        missing = [report for report, rows in zip(large, answers, strict=False) if not rows]
        if small:
            written = {(child, token) for child, token in answers[len(large)]}
            missing += [report for report in small if (report.child, report.token) not in written]
        lost: set[TaskRef] = set()
        for report, rows in zip(reports, answers[len(answers) - len(reports) :], strict=True):
            lost |= _missing(report, rows)
        if missing:  # Not whole claims after all, or lost.
            for report, rows in zip(missing, self._session.transact(*map(settle_jobs, missing)), strict=True):
                lost |= _missing(report, rows)
        return Recorded(self.never_recorded(lost))

    def _record_singly(self, reports: Iterable[Report]) -> Recorded:
        done = Recorded()
        for report in reports:
            for one in report.finished:
                self._record_one(report._replace(finished=(one,)), done)
        done.lost = self.never_recorded(done.lost)
        return done

    def _record_one(self, report: Report, done: Recorded) -> None:
        ref = TaskRef(report.finished[0].job, report.token)
        for words in (report, report._replace(finished=(least_of(report.finished[0]),))):
            try:
                [rows] = self._session.transact(settle_jobs(words))
            except (psycopg.Error, ValueError, OverflowError) as problem:
                _log.warning("a result cannot be stored: %s", error_name(problem), extra={"job": ref.task})
                continue
            done.lost |= _missing(words, rows)
            if words is not report:
                done.reworded.add(ref)
            return
        # Not recorded in any form: the task stays with the session, and its lease will expire.
        done.reworded.add(ref)

    def never_recorded(self, lost: set[TaskRef]) -> set[TaskRef]:
        """Return those tasks whose result was not recorded earlier either."""
        if not lost:
            return lost
        jobs, tokens = map(list, zip(*lost, strict=True))
        [rows] = self._session.transact(("remote/find_settled", {"jobs": jobs, "tokens": tokens}))
        return lost - {TaskRef(job, token) for job, token in rows}

    def write_progress(self, reports: Mapping[TaskRef, str]) -> None:
        """Write the latest progress of tasks."""
        parameters = {
            "jobs": [ref.task for ref in reports],
            "tokens": [ref.claim for ref in reports],
            "progresses": list(reports.values()),
        }
        self._session.transact(("maintenance/write_progress", parameters))


def outgoing(rest: Sequence[Report], large: Sequence[Report] = (), small: Sequence[Report] = ()) -> Outgoing:
    """Return results with the statements that record them."""
    requests = [
        *map(_settle_completed, large),
        *([_settle_claims(small)] if small else ()),
        *map(settle_jobs, rest),
    ]
    return Outgoing(rest, large, small, requests)


def released(job: int) -> Finished:
    """Return what to record for a task that did not start: it is ready, and the attempt does not count."""
    return Finished(job, RELEASED)


def _missing(report: Report, rows: Sequence[Sequence[Any]]) -> set[TaskRef]:
    written = {row[0] for row in rows}
    return {TaskRef(one.job, report.token) for one in report.finished if one.job not in written}


def settle_jobs(report: Report) -> Request:
    return "settle/settle_jobs", _parameters(report)


def _settle_completed(report: Report) -> Request:
    return "settle/settle_completed", _parameters(report)


def _parameters(report: Report) -> dict[str, object]:
    return settlement(report.child, report.token, report.finished, ran_on=report.ran_on, now=time.monotonic())


def _settle_claims(reports: Sequence[Report]) -> Request:
    finished = [one for report in reports for one in report.finished]
    together = settlement(0, 0, finished, ran_on="", now=time.monotonic())
    return "remote/settle_claims", {
        "children": [report.child for report in reports],
        "tokens": [report.token for report in reports],
        "sizes": [len(report.finished) for report in reports],
        "ran_on": [report.ran_on for report in reports],
        **{name: together[name] for name in ("ids", "ran", "ago", "keeps", "results", "usages", "progresses")},
    }
