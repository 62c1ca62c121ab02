"""Recovers the jobs of a dead child.

It terminates the child's backend, settles the job that ran, then releases the jobs that had not
started. The order is essential. A claim that was in flight when the child was killed can still
commit in its backend. If the jobs were released before that, these jobs would stay claimed until
the lease expires. So nothing is released while the backend lives, and that is checked again after a
few milliseconds. If the database role must not terminate the backend, recovery waits for it for one
lease.

Nothing here blocks: each step is a request to the database. A case whose request is lost or
rejected is retried with exponential backoff, and at once when the database is back.
"""

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from jobherd.handlers._values.outcome import Label, Outcome
from jobherd.supervisor.policy.slot import Death, Stage
from jobherd.workers.job.finished import Finished, least_of, settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.supervisor.crash.postmortem import PostMortem
    from jobherd.supervisor.database.connection import Answer, Row
    from jobherd.workers.ipc.counters import Policy
    from jobherd.workers.ipc.status_board import CurrentWork


log = logging.getLogger("jobherd.supervisor")

AGAIN: Final = 0.05
"""Seconds before the first retry of a lost or rejected request; doubled each time, with jitter."""
CRASHES: Final = frozenset({"oom", "signal", "exit"})
"""Causes of death for which a job may be responsible that the dead process was about to start."""
SELDOM: Final = 5.0
"""Maximum seconds between retries: a rejection may last for hours, and there may be a hundred
cases."""


class Post(Protocol):
    """Sends requests to the database."""

    def ask(
        self,
        name: str,
        parameters: Mapping[str, object],
        answered: Callable[[Answer], None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Send the statement of that name.

        `refused` is called instead of `answered` if the server permanently rejects the statement.
        """


class Step(Enum):
    """The next step of a case."""

    BACKEND = "backend"
    SETTLE = "settle"
    RELEASE = "release"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class CrashOutcome:
    """The outcome of the job that a child died with."""

    outcome: Label
    code: str | None
    delay: float = 0.0
    crash: int = 0


def judge(now: CurrentWork, policy: Policy, death: Death, jitter: float) -> CrashOutcome | None:
    """Return the outcome of the job in `now`, or None if the claim was lost.

    `jitter` is in -1..1.
    """
    stop_sequence = death.stop_sequence
    why = (
        stop_sequence.why.value if stop_sequence is not None and stop_sequence.stage is not Stage.TOLD else death.cause
    )
    last = now.attempts >= now.max_attempts
    match why:
        case "lost":
            return None
        case "cancel":
            return CrashOutcome("cancelled", "JOB_CANCELLED")
        case "drain" | "quit" | "worn" | "left" | "stopped":
            return CrashOutcome("abandoned", None)
        case "timeout" if not now.unstarted:
            return (
                CrashOutcome("failed", "JOB_TIMEOUT")
                if last
                else CrashOutcome("retry", "JOB_TIMEOUT", delay(policy, now.attempts, jitter))
            )
    if now.unstarted:
        return _judge_unstarted(now, policy, jitter)
    if last or now.crashes + 1 >= policy.max_crashes:
        return CrashOutcome("failed", "WORKER_CRASHED", crash=1)
    # The machine may have caused the first crash, so run the job again at once. From the second on,
    # the job is the likely cause.
    return CrashOutcome(
        "retry", "WORKER_CRASHED", 0.0 if now.crashes == 0 else delay(policy, now.attempts, jitter), crash=1
    )


def _judge_unstarted(now: CurrentWork, policy: Policy, jitter: float) -> CrashOutcome:
    """Return the outcome of a job that was announced but had not started.

    It counts a crash, so that the job cannot kill workers endlessly. The job keeps its attempts,
    since its handler was not called.
    """
    if now.crashes + 1 >= policy.max_crashes:
        return CrashOutcome("failed", "WORKER_CRASHED", crash=1)
    return CrashOutcome(
        "abandoned", "WORKER_CRASHED", 0.0 if now.crashes == 0 else delay(policy, max(now.attempts, 1), jitter), crash=1
    )


def delay(policy: Policy, attempts: int, jitter: float) -> float:
    """Return the back-off after that many attempts, in seconds."""
    base, factor, spread, cap = policy.backoff
    try:
        grown = base * factor ** max(attempts - 1, 0)
    except OverflowError:  # no float can hold it, and the cap is smaller anyway
        grown = float("inf") if base else 0.0
    return float(min(min(grown, cap) * (1 + spread * jitter), cap))


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
    verdict: CrashOutcome | None = None
    """The outcome of the job it died with."""
    verdicts: list[tuple[CurrentWork, CrashOutcome]] = field(default_factory=list)
    """The outcomes of all jobs of the call, including that job."""
    parts: list[tuple[int, list[Finished]]] = field(default_factory=list)
    """What is still to be settled: a claim and the outcomes that one request contains."""
    settled: set[int] = field(default_factory=set)
    waiting: bool = False
    again_at: float = 0.0
    pause: float = 0.001
    """Seconds until the next check whether its session has ended."""
    refused_at: float | None = None
    """When the server first refused to end its session."""
    failures: int = 0
    """How many times in a row its request was lost or rejected."""

    @property
    def token(self) -> int:
        """The claim it died with."""
        return self.now.token


class CrashRecovery:
    """All open cases."""

    def __init__(
        self,
        post: Post,
        *,
        host: str,
        lease: Callable[[], float],
        closed: Callable[[DeadChild, CrashOutcome | None, list[int]], None],
    ) -> None:
        self._post = post
        self._host = host
        self._lease = lease
        self._closed = closed
        self.cases: list[DeadChild] = []

    def take(self, case: DeadChild) -> None:
        """Start the recovery of a dead child."""
        self.cases.append(case)

    def wake_at(self) -> float:
        """Return when `step` must be called at the latest."""
        return min((case.again_at for case in self.cases if not case.waiting), default=float("inf"))

    def hurry(self) -> None:
        """The database is back: end the back-off of every case."""
        for case in self.cases:
            case.again_at, case.failures = 0.0, 0

    def step(self, now: float) -> None:
        """Send the requests that are due."""
        for case in self.cases:
            if not case.waiting and now >= case.again_at:
                self._send(case, now)
        self.cases = [case for case in self.cases if case.step is not Step.DONE]

    def _send(self, case: DeadChild, now: float) -> None:
        case.waiting = True
        death = case.death
        child: dict[str, object] = {"supervisor": death.supervisor, "incarnation": death.incarnation}
        match case.step:
            case Step.BACKEND:
                self._post.ask("recover/terminate_child_sessions", child, lambda answer: self._ended(case, answer, now))
            case Step.SETTLE if case.parts:
                part = case.parts[0]
                name, parameters = self._letter(case, part, now)
                self._post.ask(
                    name,
                    parameters,
                    lambda answer: self._settled(case, part, answer, now),
                    lambda: self._refused(case, part, now),
                )
            case Step.SETTLE | Step.RELEASE:
                case.step = Step.RELEASE
                self._release(case, now)
            case Step.DONE:
                pass

    def _letter(self, case: DeadChild, part: tuple[int, list[Finished]], now: float) -> tuple[str, dict[str, object]]:
        """Return the statement that settles a part of a case, and its parameters."""
        token, finished = part
        if not case.policy.table or token != case.token:
            return "settle/settle_jobs", settlement(
                case.now.child, token, finished, ran_on=f"{self._host}/{case.death.pid}", now=now
            )
        [one] = finished  # a record is always claimed alone; the supervisor does not know its table
        return "table/record_table_end", {
            "kind": case.policy.name,
            "record": one.job,
            "token": case.token,
            "outcome": one.outcome.label,
            "crashed": bool(one.crashed),
            "delay": one.outcome.delay,
            "error": one.outcome.error,
            "log": one.log,
            "ran": one.ran,
        }

    def _ended(self, case: DeadChild, answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            _rest(case, now)
        elif answer and answer[0][0] not in (None, "0") and not self._waited(case, answer, now):
            case.failures = 0
            case.again_at = now + case.pause
            case.pause = min(case.pause * 2, 0.1)
        else:
            case.step, case.again_at, case.failures = Step.SETTLE, 0.0, 0
            self._write_up(case)
            self._send(case, now)

    def _waited(self, case: DeadChild, answer: list[Row], now: float) -> bool:
        """Return whether the server has refused for one lease to end the session of a dead worker.

        Then its jobs are settled and released anyway: the fencing token guards that. If the session
        commits a claim later, `requeue_orphans` releases those jobs.
        """
        if answer[0][1] in (None, "0"):
            case.refused_at = None
            return False
        if case.refused_at is None:
            case.refused_at = now
        if now - case.refused_at < self._lease():
            return False
        log.warning(
            "this role must not end the database session of a dead process, so its jobs were released only after %g s; see jobherd doctor",
            self._lease(),
            extra={"incarnation": case.death.incarnation},
        )
        return True

    def _settled(self, case: DeadChild, part: tuple[int, list[Finished]], answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            _rest(case, now)
            return
        # A job may be missing here: the child had settled it before it died, or another process had
        # the claim by then. Both are fine.
        case.settled |= {int(row[0] or 0) for row in answer}
        case.parts.remove(part)
        case.again_at, case.failures = 0.0, 0
        self._send(case, now)

    def _refused(self, case: DeadChild, part: tuple[int, list[Finished]], now: float) -> None:
        """The server permanently rejects the outcomes; their jobs must end all the same.

        Settle job by job, then with a fixed text, then leave the job to others.
        """
        case.waiting = False
        at, (token, finished) = case.parts.index(part), part
        if len(finished) > 1:
            case.parts[at : at + 1] = [(token, [one]) for one in finished]
        elif (least := least_of(finished[0])) != finished[0]:
            case.parts[at] = token, [least]
        else:
            case.parts.remove(part)
        case.again_at = now

    def _released(self, case: DeadChild, answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            _rest(case, now)
            return
        case.step = Step.DONE
        ours = case.verdict is not None and case.now.job in case.settled
        self._closed(case, case.verdict if ours else None, [int(row[0]) for row in answer if row[0] is not None])

    def _release(self, case: DeadChild, now: float) -> None:
        death = case.death
        self._post.ask(
            "recover/requeue_child",
            {
                "supervisor": death.supervisor,
                "incarnation": death.incarnation,
                "cleared": case.cleared if death.cause in CRASHES else None,
                "error": case.post_mortem.sentence,
            },
            lambda answer: self._released(case, answer, now),
        )

    def _write_up(self, case: DeadChild) -> None:
        """Collect what must be settled: finished outcomes and the jobs that the child died with."""
        case.parts = [(token, finished) for token, finished in case.finished if token != case.token and finished]
        entries = [one for token, finished in case.finished if token == case.token for one in finished]
        entered = {one.job for one in entries}
        case.verdicts = []
        for record in (case.now, *case.others):
            if not record.job or record.job in entered:
                continue
            verdict = judge(record, case.policy, case.death, random.uniform(-1, 1))
            if record is case.now:
                case.verdict = verdict
            if verdict is not None:
                case.verdicts.append((record, verdict))
                entries.append(_died_with(case, record, verdict))
        if entries:
            case.parts.append((case.token, entries))


def _rest(case: DeadChild, now: float) -> None:
    case.again_at = now + min(AGAIN * 2 ** min(case.failures, 20), SELDOM) * random.uniform(0.75, 1.0)
    case.failures += 1


def _died_with(case: DeadChild, record: CurrentWork, verdict: CrashOutcome) -> Finished:
    report = case.post_mortem
    if case.policy.sealed:
        report = replace(report, log_tail="")  # it may quote the payload
    return Finished(
        record.job,
        Outcome(
            verdict.outcome,
            delay=verdict.delay,
            code=verdict.code,
            error=report.sentence,
            traceback=report.stack or None,
        ),
        ran=None if record.unstarted else max(case.death.at - record.started, 0.0),
        ended=case.death.at,
        keep=case.policy.keep_failed,
        usage=json.dumps({"max_rss": report.max_rss}),
        post_mortem=json.dumps(report.as_dict()),
        crashed=verdict.crash,
        log=case.log if record is case.now and not case.policy.sealed else None,
    )
