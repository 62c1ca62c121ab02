"""Handles the messages of the uplink: whether a gateway is connected, and what it reports about jobs.

The uplink runs no user code, but any process of this OS user can pretend to be it. So no message of it can crash
the supervisor.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.child_kinds import WORKER
from jobherd.supervisor.uplink.events import GatesChanged, HostRejected, JobCanceled, JobLost

if TYPE_CHECKING:
    from jobherd.supervisor.crash.recovery import CrashRecovery
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.board_reader import BoardReader
    from jobherd.supervisor.process.offload import Offloader
    from jobherd.supervisor.uplink.events import Event
    from jobherd.supervisor.uplink.link import UplinkLink
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")


class UplinkEvents:
    """Processes the events of the link."""

    only_work: Final = False

    def __init__(
        self,
        link: UplinkLink,
        slot_table: SlotTable,
        control: ControlBlock,
        *,
        boards: BoardReader,
        recovery: CrashRecovery,
        offloader: Offloader,
    ) -> None:
        self._link = link
        self._slot_table = slot_table
        self._control = control
        self._boards = boards
        self._recovery = recovery
        self._offloader = offloader
        self._epoch = 0
        self._trouble = ""
        self._accepted = False
        """A gateway has accepted this host."""

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return 0.0 if self._link.happened else float("inf")

    def step(self, now: float) -> None:
        """Process what has happened since the last step."""
        # The uplink writes it. Exclusive jobs end before it.
        self._slot_table.lease_deadline = self._control.lease_deadline or float("inf")
        if self._epoch != self._link.epoch:
            self._epoch = self._link.epoch
            self._recovery.hurry()
            self._slot_table.kinds_to_wake.add(WORKER)  # it ends their back-off
        events, self._link.happened = self._link.happened, []
        self._note_availability(now)
        for event in events:
            self._take(event, now)

    def _note_availability(self, now: float) -> None:
        link, slot_table = self._link, self._slot_table
        before = slot_table.database_since is not None
        if link.connected and not before:
            log.info("the gateway is there")
            self._accepted = True
            slot_table.on_database_up(now)
            self._recovery.hurry()
        elif before and not link.connected:
            log.warning("the gateway is away: %s", link.trouble or "the stream has ended")
            slot_table.on_database_down()
        elif not link.connected and link.trouble and link.trouble != self._trouble:
            log.warning("no gateway: %s", link.trouble)
        self._trouble = link.trouble

    def _take(self, event: Event, now: float) -> None:
        match event:
            case JobCanceled(incarnation, token, job):
                self._slot_table.on_cancel(incarnation=incarnation, token=token, job=job)
            case JobLost(incarnation, token, job):
                self._lose(incarnation, (token, job), now)
            case GatesChanged():
                self._slot_table.on_gates_changed(now)
                self._offloader.hurry(now)
                self._control.gates_changed()
            case HostRejected(error):
                log.error("the gateway rejects this host: %s", error)
                # After the first connection, running jobs continue, and the uplink is restarted with a back-off.
                self._slot_table.rejected = not self._accepted

    def _lose(self, incarnation: int, lost: tuple[int, int], now: float) -> None:
        """End a job that another worker may have now, or keep it from starting."""
        self._boards.hurry()
        self._boards.step(now)
        slot = self._slot_table.by_incarnation(incarnation)
        if slot is not None and (slot.seen.work.token, slot.seen.work.job) == lost:
            slot.process.lost_at = now
        else:  # as canceled it does not start, and the gateway rejects that outcome
            self._slot_table.on_cancel(incarnation=incarnation, token=lost[0], job=lost[1])
