"""Whether producers notify us, and what must have happened before our children may rely on it.

A transaction that notifies holds up every other one, so producers do it only while some supervisor holds the sleep keys
(`sql/migrations/0006_notify_sleepers.sql`). The way to hearing has three steps, and leaving one out loses a wake-up: take the keys; wait
until whoever was committing at that moment has committed, for it may have looked before; call every child that is idle, for what it has
committed was not notified. The way back has two: take back the word on the notice, then look once more whether a child is idle. A child
shows itself idle and then looks at that word: one of the two sees the other. A session that is lost takes the keys with it.

Nothing here waits; each step is a letter. When we should hear is decided in `plan.py`. Where the server refuses LISTEN the keys are left alone,
the poll finds the work, and LISTEN is asked for again.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import Answer, DatabaseConnection, Link
from jobherd.supervisor.policy.plan import hears
from jobherd.workers.ipc.record import barrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")

REFUSED: Final = 0.5
"""Seconds before what was refused is asked for again."""
LISTEN_AGAIN: Final = 5.0
"""Seconds before LISTEN is, which no session needs to go on."""
SOONEST: Final = 0.005
LATEST: Final = 0.05
"""Seconds between two looks at who is still committing: the first pause, and what it doubles to."""


class Stage(Enum):
    """How far we are."""

    DEAF = "deaf"
    """Nobody notifies for our sake. A child that goes idle says so."""
    ASKING = "asking"
    """The keys, or who is committing, are asked for."""
    WAITING = "waiting"
    """We are notified; somebody who does not know that is still committing."""
    HEARING = "hearing"
    """Children may sleep."""


class NotifyMode:
    """Drives it. `step` is called each turn; `anyone_idle` looks at the boards."""

    def __init__(self, db: DatabaseConnection, fleet: Fleet, control: ControlBlock, *, anyone_idle: Callable[[], bool]) -> None:
        self.stage = Stage.DEAF
        self._db = db
        self._fleet = fleet
        self._control = control
        self._anyone_idle = anyone_idle
        self._epoch = -1
        self._again_at = 0.0
        self._pause = SOONEST
        self._committing: list[str | None] | None = None
        self._refused = False
        """LISTEN was, when we last heard of it."""

    def wake_at(self, now: float) -> float:
        """When `step` must be called at the latest."""
        if self._db.link is not Link.UP:
            return float("inf")
        if not self._db.listening:
            return self._again_at if self._db.unheard else float("inf")
        return self._again_at if self.stage is Stage.WAITING or (self.stage is Stage.DEAF and hears(self._fleet, now)) else float("inf")

    def step(self, now: float) -> None:
        """Go on towards hearing, or leave it, as the plan says."""
        if self._db.link is not Link.UP or self._epoch != self._db.epoch:
            self._control.hearing = False
            self.stage, self._again_at = Stage.DEAF, now
            if self._db.link is not Link.UP:
                return
            self._epoch = self._db.epoch
        if not self._db.listening:
            # Through a pooler the keys would be held by whoever shares that backend, for as long as the pooler keeps it.
            if self._db.unheard:
                self._listen_again(now)
            return
        if self._refused:
            self._refused = False
            log.info("the server lets us listen")
        if self.stage is Stage.DEAF and now >= self._again_at and hears(self._fleet, now):
            self._start(now)
        elif self.stage is Stage.WAITING and now >= self._again_at:
            self._look(now)
        elif self.stage is Stage.HEARING and not hears(self._fleet, now):
            self._stop()

    def _listen_again(self, now: float) -> None:
        if not self._refused:
            self._refused = True
            log.warning("the server refuses LISTEN, so jobs wait for the poll; it is asked again and again: %s", self._db.unheard)
        if now >= self._again_at:
            self._again_at = now + LISTEN_AGAIN
            self._db.listen()

    # -- the way there ----------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        self.stage = Stage.ASKING
        self._pause, self._committing = SOONEST, None
        epoch = self._epoch
        self._db.ask("start_hearing", {}, lambda answer: self._started(answer, epoch, asked=now))

    def _started(self, answer: Answer, epoch: int, *, asked: float) -> None:
        if epoch != self._epoch:
            return
        if answer is None:
            self.stage, self._again_at = Stage.DEAF, asked + REFUSED
        else:
            self._look(asked)

    def _look(self, now: float) -> None:
        self.stage = Stage.ASKING
        epoch = self._epoch
        self._db.ask("find_committing", {"seen": self._committing}, lambda answer: self._looked(answer, epoch, asked=now))

    def _looked(self, answer: Answer, epoch: int, *, asked: float) -> None:
        if epoch != self._epoch:
            return
        if answer == []:
            self.stage = Stage.HEARING
            self._control.hearing = True
            self._control.bump()
            self._fleet.all_idle_called()
            return
        if answer is not None:
            self._committing = [row[0] for row in answer]
        self.stage, self._again_at = Stage.WAITING, asked + self._pause
        self._pause = min(2 * self._pause, LATEST)

    # -- the way back -----------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._control.hearing = False
        barrier()
        if self._anyone_idle():
            self._control.hearing = True
            self._fleet.rested()
            return
        self.stage, self._again_at = Stage.DEAF, 0.0
        # Should we be asked for again before it is answered: the session takes one letter after the other.
        self._db.ask("stop_hearing", {}, _ignore)


def _ignore(answer: Answer) -> None:
    """Whether or not it was refused: keys that are kept cost notifications and lose nothing."""
