"""Announces a new run state to the log, the service manager and the children; decides the exit code."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.settings.readers import show_span
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from jobherd.supervisor.database.until_empty import UntilEmpty
    from jobherd.supervisor.observe.status_report import StatusReport
    from jobherd.supervisor.observe.systemd import ServiceManager
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.board_reader import BoardReader
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")


class RunStateChanges:
    """Detects each change of the run state, whatever caused it, before the plan of that turn."""

    def __init__(
        self,
        slot_table: SlotTable,
        control: ControlBlock,
        settings: LiveSettings,
        *,
        boards: BoardReader,
        manager: ServiceManager,
        until_empty: UntilEmpty,
        status_report: StatusReport,
    ) -> None:
        self._slot_table = slot_table
        self._control = control
        self._settings = settings
        self._boards = boards
        self._manager = manager
        self._until_empty = until_empty
        self._status_report = status_report
        self._announced = slot_table.run_state

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        changed = self._slot_table.run_state is not self._announced
        ends = self._until_empty.nothing_left and self._slot_table.run_state is RunState.SERVING
        return 0.0 if changed or ends else float("inf")

    def step(self, now: float) -> None:
        """Announce the run state if it has changed."""
        if self._until_empty.nothing_left and self._slot_table.run_state is RunState.SERVING:
            log.info("nothing is left to do")
            self._slot_table.enter_state(RunState.DRAINING, now)
        if self._slot_table.run_state is not self._announced:
            self._announced = self._slot_table.run_state
            self._announce(now)

    def count_workers(self, now: float) -> dict[str, object]:
        """Return the numbers of wanted workers and of running jobs, as fleet commands answer them."""
        self._boards.hurry()
        self._boards.step(now)
        return {
            "workers": self._slot_table.wanted,
            "running": sum(1 for slot in self._slot_table.alive() if slot.seen.work.job),
        }

    def exit_code(self, code: int) -> int:
        """Return the exit code: 1 if a run ends because nothing is left to do, and jobs have failed."""
        counts = self._until_empty.nothing_left and not self._settings.now.ignore_failures
        if code or not counts or not (failed := self._status_report.count_failed()):
            return code
        log.error(
            "%d %s failed, so the exit code is 1; --ignore-failures makes it 0",
            failed,
            "job" if failed == 1 else "jobs",
        )
        return 1

    def _announce(self, now: float) -> None:
        self._control.draining = True
        reach("parent:draining")
        self._manager.tell("STOPPING=1")
        running = self.count_workers(now)["running"]
        wait = (
            f"; waits up to {show_span(self._settings.now.drain_timeout)} for them, "
            "a second Ctrl-C or SIGTERM returns them to their queues"
        )
        words = {
            RunState.DRAINING: "draining: nothing more is claimed, %d running" + (wait if running else ""),
            RunState.FAST_SHUTDOWN: "exiting now: %d running jobs are released",
            RunState.IMMEDIATE_SHUTDOWN: "exiting at once: %d running jobs are killed",
        }
        log.info(words[self._slot_table.run_state], running)
