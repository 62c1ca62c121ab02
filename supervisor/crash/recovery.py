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

import logging
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.crash.dead_child import DeadChild, Recovered, Step

if TYPE_CHECKING:
    from jobherd.supervisor.database.interface import Requests
    from jobherd.supervisor.database.requests import Answer, Row
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.job.finished import Finished

log = logging.getLogger("jobherd.supervisor")

CRASHES: Final = frozenset({"oom", "signal", "exit"})
"""Causes of death for which a job may be responsible that the dead process was about to start."""


class CrashRecovery:
    """Recovers the jobs of all dead children, one step after the other.

    Attributes:
        recovered: cases that ended since the owner last took them.
    """

    def __init__(self, db: Requests, slot_table: SlotTable, *, host: str) -> None:
        self.recovered: list[Recovered] = []
        self._db = db
        self._slot_table = slot_table
        self._host = host
        self._cases: list[DeadChild] = []

    def take(self, case: DeadChild) -> None:
        """Start the recovery of a dead child."""
        self._cases.append(case)

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return min((case.again_at for case in self._cases if not case.waiting), default=float("inf"))

    def hurry(self) -> None:
        """End the back-off of every case: the database is back."""
        for case in self._cases:
            case.hurry()

    def step(self, now: float) -> None:
        """Send the requests that are due."""
        for case in self._cases:
            if not case.waiting and now >= case.again_at:
                self._send(case, now)
        self._cases = [case for case in self._cases if case.step is not Step.DONE]

    def _send(self, case: DeadChild, now: float) -> None:
        case.waiting = True
        match case.step:
            case Step.BACKEND:
                self._terminate_sessions(case, now)
            case Step.SETTLE if case.parts:
                part = case.parts[0]
                name, parameters = case.statement_of(part, host=self._host, now=now)
                self._db.ask(
                    name,
                    parameters,
                    lambda answer: self._settled(case, part, answer, now),
                    lambda: self._refused(case, part, now),
                )
            case Step.SETTLE | Step.RELEASE:
                case.step = Step.RELEASE
                cleared = case.cleared if case.death.cause in CRASHES else None
                self._db.ask(
                    "recover/requeue_child",
                    {**case.child, "cleared": cleared, "error": case.post_mortem.sentence},
                    lambda answer: self._released(case, answer, now),
                )
            case Step.DONE:
                pass

    def _terminate_sessions(self, case: DeadChild, now: float) -> None:
        name = "recover/terminate_child_sessions"
        self._db.ask(name, case.child, lambda answer: self._ended(case, answer, now))

    def _ended(self, case: DeadChild, answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            case.rest(now)
        elif answer and answer[0][0] not in (None, "0") and not self._waited(case, answer, now):
            case.retries.reset()
            case.again_at = now + case.checks.next()
        else:
            case.step = Step.SETTLE
            case.hurry()
            case.collect()
            self._send(case, now)

    def _waited(self, case: DeadChild, answer: list[Row], now: float) -> bool:
        """Return whether the server has refused for one lease to end the session of a dead worker.

        Then its jobs are settled and released anyway: the fencing token guards that. If the session
        commits a claim later, `requeue_orphans` releases those jobs.
        """
        lease = self._slot_table.limits.lease
        if answer[0][1] in (None, "0"):
            case.refused_at = None
            return False
        if case.refused_at is None:
            case.refused_at = now
        if now - case.refused_at < lease:
            return False
        log.warning(
            "this role must not end the database session of a dead process, so its jobs were released only after "
            "%g s; see jobherd doctor",
            lease,
            extra={"incarnation": case.death.incarnation},
        )
        return True

    def _settled(self, case: DeadChild, part: tuple[int, list[Finished]], answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            case.rest(now)
            return
        # A job may be missing here: the child had settled it before it died, or another process had
        # the claim by then. Both are fine.
        case.settled |= {int(row[0] or 0) for row in answer}
        case.parts.remove(part)
        case.hurry()
        self._send(case, now)

    def _refused(self, case: DeadChild, part: tuple[int, list[Finished]], now: float) -> None:
        case.waiting = False
        case.split(part)
        case.again_at = now

    def _released(self, case: DeadChild, answer: Answer, now: float) -> None:
        case.waiting = False
        if answer is None:
            case.rest(now)
            return
        case.step = Step.DONE
        outcome = case.outcome if case.now.job in case.settled else None
        self.recovered.append(Recovered(case, outcome, [int(row[0]) for row in answer if row[0] is not None]))
