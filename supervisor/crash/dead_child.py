"""Stores what a dead child held, composes the outcomes to record for it, and tracks its recovery.

It sends nothing: `recovery.py` sends the requests.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.outcome import Outcome
from jobherd.supervisor.crash.crash_outcome import CrashOutcome, crash_outcome
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.job.finished import Finished, least_of, settlement

if TYPE_CHECKING:
    from jobherd.supervisor.crash.postmortem import PostMortem
    from jobherd.supervisor.policy.child_exit import Death
    from jobherd.workers.ipc.counters import Policy
    from jobherd.workers.ipc.current_work import CurrentWork


AGAIN: Final = 0.05
"""Seconds before the first retry of a lost or rejected request; doubled each time, with jitter."""
SELDOM: Final = 5.0
"""Maximum seconds between retries: a rejection may last for hours, and there may be a hundred
cases."""


class Step(Enum):
    """The next step of a recovery."""

    BACKEND = "backend"
    SETTLE = "settle"
    RELEASE = "release"
    DONE = "done"


@dataclass(slots=True)
class DeadChild:
    """One dead child, and the progress of its recovery."""

    death: Death
    now: CurrentWork
    policy: Policy
    post_mortem: PostMortem
    finished: list[tuple[int, list[Finished]]] = field(default_factory=list)
    """Outcomes on its status board that may not be written yet, by claim: of the current claim and
    the one before."""
    others: list[CurrentWork] = field(default_factory=list)
    """Jobs that ran in the same call as the job it died with."""
    log: str | None = None
    """What that job had printed and logged."""
    cleared: list[int] = field(default_factory=list)
    """Its claims of which a job has started."""
    step: Step = Step.BACKEND
    outcome: CrashOutcome | None = None
    """The outcome of the job it died with."""
    outcomes: list[tuple[CurrentWork, CrashOutcome]] = field(default_factory=list)
    """The outcomes of all jobs of the call, including that job."""
    parts: list[tuple[int, list[Finished]]] = field(default_factory=list)
    """What is still to be settled: a claim and the outcomes that one request contains."""
    settled: set[int] = field(default_factory=set)
    waiting: bool = False
    again_at: float = 0.0
    checks: Backoff = field(default_factory=lambda: Backoff(0.001, 0.1))
    """Seconds between two checks whether its session has ended."""
    refused_at: float | None = None
    """When the server first refused to end its session."""
    retries: Backoff = field(default_factory=lambda: Backoff(AGAIN, SELDOM, spread=(0.75, 1.0)))
    """Seconds before a lost or rejected request is repeated."""

    @property
    def token(self) -> int:
        """The claim it died with."""
        return self.now.token

    def rest(self, now: float) -> None:
        """Repeat the request after a back-off: it was lost or rejected."""
        self.again_at = now + self.retries.next()

    def hurry(self) -> None:
        """Send the next request at once: one has succeeded, or the database is back."""
        self.again_at = 0.0
        self.retries.reset()

    @property
    def child(self) -> dict[str, object]:
        """Its key in the database."""
        return {"supervisor": self.death.supervisor, "incarnation": self.death.incarnation}

    def collect(self) -> None:
        """Collect what must be settled: finished outcomes and the jobs that the child died with."""
        self.parts = [(token, finished) for token, finished in self.finished if token != self.token and finished]
        entries = [one for token, finished in self.finished if token == self.token for one in finished]
        entered = {one.job for one in entries}
        self.outcomes = []
        for record in (self.now, *self.others):
            if not record.job or record.job in entered:
                continue
            outcome = crash_outcome(record, self.policy, self.death, random.uniform(-1, 1))
            if record is self.now:
                self.outcome = outcome
            if outcome is not None:
                self.outcomes.append((record, outcome))
                entries.append(_died_with(self, record, outcome))
        if entries:
            self.parts.append((self.token, entries))

    def split(self, part: tuple[int, list[Finished]]) -> None:
        """Split a part that the server permanently rejects, so that its jobs end all the same.

        Settle job by job, then with a fixed text, then leave the job to others.
        """
        at, (token, finished) = self.parts.index(part), part
        if len(finished) > 1:
            self.parts[at : at + 1] = [(token, [one]) for one in finished]
        elif (least := least_of(finished[0])) != finished[0]:
            self.parts[at] = token, [least]
        else:
            self.parts.remove(part)

    def statement_of(self, part: tuple[int, list[Finished]], *, host: str, now: float) -> tuple[str, dict[str, object]]:
        """Return the statement that settles a part, and its parameters."""
        token, finished = part
        if not self.policy.table or token != self.token:
            return "settle/settle_jobs", settlement(
                self.now.child, token, finished, ran_on=f"{host}/{self.death.pid}", now=now
            )
        [one] = finished  # a record is always claimed alone; the supervisor does not have its table's name
        return "table/record_table_end", {
            "kind": self.policy.name,
            "record": one.job,
            "token": self.token,
            "outcome": one.outcome.label,
            "crashed": bool(one.crashed),
            "delay": one.outcome.delay,
            "error": one.outcome.error,
            "log": one.log,
            "ran": one.ran,
        }


@dataclass(frozen=True, slots=True)
class Recovered:
    """The jobs of a dead child are settled and released."""

    case: DeadChild
    outcome: CrashOutcome | None
    """The outcome that was settled for the job it died with; None: none, or another process had
    settled it."""
    released: list[int]
    """Ids of the jobs that were released."""


def _died_with(case: DeadChild, record: CurrentWork, outcome: CrashOutcome) -> Finished:
    report = case.post_mortem
    if case.policy.sealed:
        report = replace(report, log_tail="")  # it may quote the payload
    return Finished(
        record.job,
        Outcome(
            outcome.outcome,
            delay=outcome.delay,
            code=outcome.code,
            error=report.sentence,
            traceback=report.stack or None,
        ),
        ran=None if record.unstarted else max(case.death.at - record.started, 0.0),
        ended=case.death.at,
        keep=case.policy.keep_failed,
        usage=json.dumps({"max_rss": report.max_rss}),
        post_mortem=json.dumps(report.as_dict()),
        crashed=outcome.crash,
        log=case.log if record is case.now and not case.policy.sealed else None,
    )
