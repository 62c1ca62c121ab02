"""Switches notifications by producers on and off, so that no wake-up is lost.

A transaction that notifies delays every other one. So producers notify only while a supervisor
holds the sleep keys, which are advisory locks (`sql/schema/05_wake.sql`).

Three steps switch notifications on; without one of them a wake-up is lost. Take the keys. Wait for
the transactions that were committing at that time, since they may have checked the keys before.
Wake every idle child, since the jobs of these transactions were not notified.

Two steps switch them off: clear the flag in the control block, then check again whether a child is
idle. A child first shows that it is idle and then reads the flag, so at least one of the two sees
the other's write. A lost session loses the keys too.

Nothing here blocks: each step is a request. `policy/wakeups.py` decides whether notifications are wanted. If
the server rejects LISTEN, the keys are not taken, the poll finds the work, and LISTEN is tried
again.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from jobherd.supervisor.database.connection import DatabaseConnection, Link
from jobherd.supervisor.policy.wakeups import wants_notify
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.ipc.memory_barrier import barrier

if TYPE_CHECKING:
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")

REFUSED: Final = 0.5
"""Seconds before a rejected request is repeated."""
LISTEN_AGAIN: Final = 5.0
"""Seconds before LISTEN is repeated, which no session needs to continue."""
SOONEST: Final = 0.005
LATEST: Final = 0.05
"""Seconds between two checks for transactions that are still committing: the first pause, and its
maximum after doubling."""


class IdleFlags(Protocol):
    """Reads the idle flags on the status boards (`process/board_reader.py`)."""

    def anyone_idle(self) -> bool:
        """Return whether a worker is idle now, or was since the boards were last read."""


class Stage(Enum):
    """The progress of switching notifications on."""

    OFF = "off"
    """Producers do not notify for this supervisor. A child that goes idle reports it."""
    ASKING = "asking"
    """A request for the keys, or for the committing transactions, is under way."""
    WAITING = "waiting"
    """Producers notify, but a transaction that has not seen this is still committing."""
    ON = "on"
    """Children may sleep until they are woken."""


class NotifyMode:
    """Switches notifications on and off, step by step."""

    def __init__(self, db: DatabaseConnection, slot_table: SlotTable, control: ControlBlock, boards: IdleFlags) -> None:
        self.stage = Stage.OFF
        self._db = db
        self._slot_table = slot_table
        self._control = control
        self._boards = boards
        self._epoch = -1
        self._again_at = 0.0
        self._checks = Backoff(SOONEST, LATEST)
        self._committing: list[str | None] | None = None
        self._refused = False
        """The last LISTEN was rejected."""

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self._db.link is not Link.UP:
            return float("inf")
        if not self._db.setup.listening:
            return self._again_at if self._db.setup.listen_error else float("inf")
        return (
            self._again_at
            if self.stage is Stage.WAITING or (self.stage is Stage.OFF and wants_notify(self._slot_table, now))
            else float("inf")
        )

    def step(self, now: float) -> None:
        """Switch notifications on or off, as `policy/wakeups.py` decides."""
        if self._db.link is not Link.UP or self._epoch != self._db.epoch:
            self._control.notified = False
            self.stage, self._again_at = Stage.OFF, now
            if self._db.link is not Link.UP:
                return
            self._epoch = self._db.epoch
        if not self._db.setup.listening:
            # Through a pooler, the next client of that backend would hold the keys, for as long as
            # the pooler keeps it.
            if self._db.setup.listen_error:
                self._listen_again(now)
            return
        if self._refused:
            self._refused = False
            log.info("the server accepts LISTEN again")
        if self.stage is Stage.OFF and now >= self._again_at and wants_notify(self._slot_table, now):
            self._start(now)
        elif self.stage is Stage.WAITING and now >= self._again_at:
            self._query(now)
        elif self.stage is Stage.ON and not wants_notify(self._slot_table, now):
            self._stop()

    def _listen_again(self, now: float) -> None:
        if not self._refused:
            self._refused = True
            log.warning(
                "the server rejects LISTEN, so jobs wait for the poll; the supervisor keeps retrying: %s",
                self._db.setup.listen_error,
            )
        if now >= self._again_at:
            self._again_at = now + LISTEN_AGAIN
            self._db.setup.listen()

    # -- on

    def _start(self, now: float) -> None:
        self.stage = Stage.ASKING
        self._checks.reset()
        self._committing = None
        epoch = self._epoch
        self._db.ask("wake/enable_notify", {}, lambda answer: self._started(answer, epoch, asked=now))

    def _started(self, answer: Answer, epoch: int, *, asked: float) -> None:
        if epoch != self._epoch:
            return
        if answer is None:
            self.stage, self._again_at = Stage.OFF, asked + REFUSED
        else:
            self._query(asked)

    def _query(self, now: float) -> None:
        self.stage = Stage.ASKING
        epoch = self._epoch
        self._db.ask(
            "wake/find_committing_producers",
            {"seen": self._committing},
            lambda answer: self._queried(answer, epoch, asked=now),
        )

    def _queried(self, answer: Answer, epoch: int, *, asked: float) -> None:
        if epoch != self._epoch:
            return
        if answer == []:
            self.stage = Stage.ON
            self._control.notified = True
            self._control.bump()
            self._slot_table.request_all_wakeups()
            return
        if answer is not None:
            self._committing = [row[0] for row in answer]
        self.stage, self._again_at = Stage.WAITING, asked + self._checks.next()

    # -- off

    def _stop(self) -> None:
        self._control.notified = False
        barrier()
        if self._boards.anyone_idle():
            self._control.notified = True
            self._slot_table.on_rested()
            return
        self.stage, self._again_at = Stage.OFF, 0.0
        # A new start before the answer is fine: the session executes one request after the other.
        self._db.ask("wake/disable_notify", {}, _ignore)


def _ignore(answer: Answer) -> None:
    """Ignore the answer: keys that are kept cost notifications, but lose no wake-up."""
