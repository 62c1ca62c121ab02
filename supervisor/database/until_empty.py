"""Finds out whether anything is left to do, for `--until-empty`. The loop ends the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.outcome import KEY_MISSING, WORKER_RESOLUTION_ERROR
from jobherd.supervisor.policy.actions import NEVER
from jobherd.supervisor.policy.child_kinds import RESETTER
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.slot import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.database.interface import Requests
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.status_board import StatusBoard

_LOOK: Final = 0.05
"""Seconds between two checks whether every worker is idle."""
_WAIT: Final = 1.0
"""Seconds to wait for an answer before the database is queried again."""
_AGAIN: Final = 0.2
"""Seconds before the next query after one that has found work."""
_MOST: Final = 10_000
"""Scheduled jobs that are checked for what they lack; postponed jobs come first."""
_LACKING: Final = {KEY_MISSING: "a key of JOBHERD_KEYS", WORKER_RESOLUTION_ERROR: "a handler of their kind"}


class UntilEmpty:
    """Queries whether anything is left once every worker is idle.

    Attributes:
        nothing_left: nothing is left to do.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        boards: Sequence[StatusBoard],
        db: Requests,
        settings: LiveSettings,
    ) -> None:
        self.nothing_left = False
        self._slot_table = slot_table
        self._boards = boards
        self._db = db
        self._settings = settings
        self._ask_at = 0.0
        self._idled = -1
        """How often the workers had gone idle when counting the resetter's scans began."""
        self._looks = 0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._ask_at if self._asks() else NEVER

    def step(self, now: float) -> None:
        """Query if that is due, every child that claims is idle, and no dead child's jobs must be released."""
        slot_table = self._slot_table
        if not self._asks() or now < self._ask_at:
            return
        self._ask_at = now + _LOOK
        claiming = [slot for slot in slot_table.alive() if slot.kind.claims]
        if not claiming or slot_table.unrecovered or not all(self._is_idle(slot) for slot in claiming):
            return
        if slot_table.has_table_stores and not self._stores_are_empty(
            sum(self._boards[slot.number].times_idle for slot in slot_table.workers() if slot.alive)
        ):
            return
        if slot_table.only_table_stores:
            self.nothing_left = True
            return
        self._ask_at = now + _WAIT
        self._db.ask("observe/find_work", {"served": self._served()}, self._found)

    def _is_idle(self, slot: Slot) -> bool:
        """Return whether the child has nothing to do.

        The idle flag of a gateway means that remote workers wait for jobs. Without remote workers it
        is off, and the run would never end. So a gateway is idle if none of its jobs are out.
        """
        board = self._boards[slot.number]
        return slot.state is State.READY and (board.idle if slot.kind.works else not board.held)

    def _asks(self) -> bool:
        serving = self._slot_table.run_state is RunState.SERVING
        return self._settings.now.until_empty and serving and not self.nothing_left

    def _served(self) -> list[str] | None:
        """Return the queues that count; None: all of them."""
        return list(self._settings.now.served) or None

    def _stores_are_empty(self, idled: int) -> bool:
        """Return whether the resetter has found every table empty after all workers had gone idle.

        The scan must have begun after the workers had gone idle, `idled` times in all.
        """
        slot = next(slot for slot in self._slot_table.slots if slot.kind is RESETTER)
        board = self._boards[slot.number]
        looks = board.claims[0]
        if slot.state is not State.READY or self._idled != idled:
            self._idled, self._looks = (idled if slot.state is State.READY else -1), looks
        if looks >= self._looks + 2:  # one scan may have been under way
            return slot.state is State.READY and board.idle
        self._slot_table.kinds_to_wake.add(RESETTER)
        return False

    def _found(self, answer: Answer) -> None:
        now = time.monotonic()
        if not self._asks():
            return  # there was more than one query, or the supervisor has begun to stop
        if answer and answer[0][0] == "f":
            self._ask_at = now + _WAIT
            self._db.ask("observe/count_unrunnable", {"served": self._served(), "most": _MOST}, self._counted)
        else:
            self._ask_at = now + _AGAIN

    def _counted(self, answer: Answer) -> None:
        """Report the jobs that are left.

        There would be no other report: such jobs are postponed once a minute, and this supervisor
        has exited by then.
        """
        if not self._asks():
            return
        if answer:
            left = " and ".join(f"{jobs} for {_LACKING[str(code)]} (job {job})" for code, jobs, job in answer)
            self._slot_table.warnings.append(f"jobs remain that wait for what this supervisor does not have: {left}")
        self.nothing_left = True
