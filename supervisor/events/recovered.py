"""Handles the end of a dead child's recovery: counts and logs the outcomes, wakes children."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobherd.handlers._values.outcome import LABELS
from jobherd.supervisor.policy.child_kinds import MAINTENANCE, RESETTER
from jobherd.workers.run.job_log import failure_words

if TYPE_CHECKING:
    from jobherd.supervisor.crash.crash_outcome import CrashOutcome
    from jobherd.supervisor.crash.dead_child import DeadChild, Recovered
    from jobherd.supervisor.crash.death_messages import DeathMessages
    from jobherd.supervisor.crash.recovery import CrashRecovery
    from jobherd.supervisor.observe.status_report import StatusReport
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.current_work import CurrentWork

log = logging.getLogger("jobherd.supervisor")


class RecoveredChildren:
    """Processes the recoveries that `crash/recovery.py` has finished."""

    def __init__(
        self,
        recovery: CrashRecovery,
        slot_table: SlotTable,
        control: ControlBlock,
        *,
        deaths: DeathMessages,
        status_report: StatusReport,
        settings: LiveSettings,
    ) -> None:
        self._recovery = recovery
        self._slot_table = slot_table
        self._control = control
        self._deaths = deaths
        self._status_report = status_report
        self._settings = settings

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return 0.0 if self._recovery.recovered else float("inf")

    def step(self, now: float) -> None:
        """Process the cases that have ended since the last step."""
        ended, self._recovery.recovered = self._recovery.recovered, []
        for recovered in ended:
            self._end(recovered, now)

    def _end(self, recovered: Recovered, now: float) -> None:
        case, released = recovered.case, recovered.released
        self._slot_table.on_recovered(case.death.incarnation, now)
        self._status_report.count_recovered(recovered)
        for record, outcome in case.outcomes:
            if record.job in case.settled:
                self._log_job(case, record, outcome)
                if self._slot_table.has_death_hooks and self._deaths.send(case, record, outcome):
                    self._slot_table.kinds_to_wake.add(MAINTENANCE)
        if case.policy.table:
            # The record's outcome is stored; the resetter writes it into the application's table.
            self._slot_table.kinds_to_wake.add(RESETTER)
        if released:
            log.info("%d claimed jobs were released", len(released), extra={"jobs": released[:20]})
            self._slot_table.request_wakeups(len(released))
            self._control.bump()

    def _log_job(self, case: DeadChild, record: CurrentWork, outcome: CrashOutcome) -> None:
        """Log the outcome of a job that ended with its process.

        The log line about the process has the reason.
        """
        ids: dict[str, object] = {"record" if case.policy.table else "job": record.job, "kind": case.policy.name}
        ids |= {"attempt": record.attempts, "max_attempts": record.max_attempts, "pid": case.death.pid}
        ended = LABELS[outcome.outcome]
        if not ended.failed:
            log.info(ended.words, extra=ids)
        elif self._settings.now.log_jobs != "none":
            level = logging.WARNING if outcome.outcome == "retry" else logging.ERROR
            log.log(level, "%s", failure_words(outcome.outcome, outcome.delay, outcome.code or ""), extra=ids)
