"""What becomes of a dead child's jobs: its session is ended, what it ran is settled, what it had not started is given back.

The order is the point. A claim that was in flight when the child was killed still commits in its backend: released before that, its jobs
would hang until the lease ends. So nothing is released while the backend lives, and it is asked every few milliseconds. If this role must not
end that backend, one lease is waited for it. Nothing here waits;
each step is a letter to the database, and a case whose letter is lost or refused is taken up again, ever more seldom, and at once when the
database is back.
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
from jobherd.workers.job.finished import STATE_OF, Finished, least_of, settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.supervisor.crash.postmortem import PostMortem
    from jobherd.supervisor.database.connection import Answer, Row
    from jobherd.workers.ipc.counters import Policy
    from jobherd.workers.ipc.status_board import CurrentWork


log = logging.getLogger("jobherd.supervisor")

AGAIN: Final = 0.05
"""Seconds before a letter that was lost or refused is sent again the first time; doubled each time, with jitter."""
CRASHES: Final = frozenset({"oom", "signal", "exit"})
"""Causes of death that may be the fault of a job which the dead process was about to take."""
SELDOM: Final = 5.0
"""The longest such rest: a refusal may last for hours, and there may be a hundred cases."""


class Post(Protocol):
    """Where letters to the database go."""

    def ask(
        self, name: str, parameters: Mapping[str, object], answered: Callable[[Answer], None], refused: Callable[[], None] | None = None
    ) -> None:
        """Send the statement of that name; `refused` is called instead of `answered` if the server will not have it."""


class Step(Enum):
    """How far a case is."""

    BACKEND = "backend"
    SETTLE = "settle"
    RELEASE = "release"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class CrashOutcome:
    """What becomes of the job a child died with."""

    outcome: Label
    code: str | None
    delay: float = 0.0
    crash: int = 0


def judge(now: CurrentWork, policy: Policy, death: Death, jitter: float) -> CrashOutcome | None:
    """Return what becomes of the job that `now` names, or None if it is not ours to say. `jitter` is between -1 and 1."""
    stop_sequence = death.stop_sequence
    why = stop_sequence.why.value if stop_sequence is not None and stop_sequence.stage is not Stage.TOLD else death.cause
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
                CrashOutcome("failed", "JOB_TIMEOUT") if last else CrashOutcome("retry", "JOB_TIMEOUT", delay(policy, now.attempts, jitter))
            )
    if now.unstarted:
        return _judge_unstarted(now, policy, jitter)
    if last or now.crashes + 1 >= policy.max_crashes:
        return CrashOutcome("failed", "WORKER_CRASHED", crash=1)
    # The first crash may have been the machine's fault: again at once. From the second on it is likely the job's.
    return CrashOutcome("retry", "WORKER_CRASHED", 0.0 if now.crashes == 0 else delay(policy, now.attempts, jitter), crash=1)


def _judge_unstarted(now: CurrentWork, policy: Policy, jitter: float) -> CrashOutcome:
    """The job counts a crash, so that it cannot kill workers without end. It keeps its attempts, since its handler was not called."""
    if now.crashes + 1 >= policy.max_crashes:
        return CrashOutcome("failed", "WORKER_CRASHED", crash=1)
    return CrashOutcome("abandoned", "WORKER_CRASHED", 0.0 if now.crashes == 0 else delay(policy, max(now.attempts, 1), jitter), crash=1)


def delay(policy: Policy, attempts: int, jitter: float) -> float:
    """Return the back-off after so many attempts, in seconds."""
    base, factor, spread, cap = policy.backoff
    try:
        grown = base * factor ** max(attempts - 1, 0)
    except OverflowError:  # no float holds it: the cap is smaller anyway
        grown = float("inf") if base else 0.0
    return float(min(min(grown, cap) * (1 + spread * jitter), cap))


@dataclass(slots=True)
class DeadChild:
    """One dead child."""

    death: Death
    now: CurrentWork
    policy: Policy
    post_mortem: PostMortem
    finished: list[tuple[int, list[Finished]]] = field(default_factory=list)
    """What its board says it had finished and was not sure to have written, by claim: of the one in hand, and of the one before."""
    others: list[CurrentWork] = field(default_factory=list)
    """What ran in the same call as the job it died with."""
    log: str | None = None
    """What that job had printed and logged."""
    cleared: list[int] = field(default_factory=list)
    """Its claims of which a job has started."""
    step: Step = Step.BACKEND
    verdict: CrashOutcome | None = None
    """What becomes of the job it died with."""
    verdicts: list[tuple[CurrentWork, CrashOutcome]] = field(default_factory=list)
    """The same for each job of the call, that job included."""
    parts: list[tuple[int, list[Finished]]] = field(default_factory=list)
    """What is still to be settled, and what of it in one letter, with its claim."""
    settled: set[int] = field(default_factory=set)
    waiting: bool = False
    again_at: float = 0.0
    pause: float = 0.001
    """Between two looks whether its session is gone."""
    refused_at: float | None = None
    """When the server first refused to end its session."""
    failures: int = 0
    """How often in a row its letter was lost or refused."""

    @property
    def token(self) -> int:
        """The claim it died with."""
        return self.now.token


class CrashRecovery:
    """All cases that are open."""

    def __init__(
        self, post: Post, *, host: str, lease: Callable[[], float], closed: Callable[[DeadChild, CrashOutcome | None, list[int]], None]
    ) -> None:
        self._post = post
        self._host = host
        self._lease = lease
        self._closed = closed
        self.cases: list[DeadChild] = []

    def take(self, case: DeadChild) -> None:
        """Begin a case."""
        self.cases.append(case)

    def wake_at(self) -> float:
        """When `step` must be called at the latest."""
        return min((case.again_at for case in self.cases if not case.waiting), default=float("inf"))

    def hurry(self) -> None:
        """The database is back: no case rests any longer."""
        for case in self.cases:
            case.again_at, case.failures = 0.0, 0

    def step(self, now: float) -> None:
        """Send what is due."""
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
                self._post.ask("end_backend", child, lambda answer: self._ended(case, answer, now))
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
            return "settle_jobs", settlement(case.now.child, token, finished, ran_on=f"{self._host}/{case.death.pid}", now=now)
        [one] = finished  # a record is claimed alone; its table is not ours to know
        return "note_table_end", {
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

        Then its jobs are settled and released all the same: the fencing token guards that. If the session commits a claim later,
        `release_orphans` gives those jobs back.
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
        # Not among them: the child had settled it before it died, or the claim was somebody else's by then. Both are fine.
        case.settled |= {int(row[0] or 0) for row in answer}
        case.parts.remove(part)
        case.again_at, case.failures = 0.0, 0
        self._send(case, now)

    def _refused(self, case: DeadChild, part: tuple[int, list[Finished]], now: float) -> None:
        """What cannot be written down must still end its job: job by job, then in fixed words, then not by us."""
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
            "release_child",
            {
                "supervisor": death.supervisor,
                "incarnation": death.incarnation,
                "cleared": case.cleared if death.cause in CRASHES else None,
                "error": case.post_mortem.sentence,
            },
            lambda answer: self._released(case, answer, now),
        )

    def _write_up(self, case: DeadChild) -> None:
        """Collect what there is to settle: what the child had finished, and what it died with."""
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
            STATE_OF[verdict.outcome],
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
