"""Acts on the signals that the supervisor received, and on fleet commands with the same effect."""

from __future__ import annotations

import logging
import selectors
import signal
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.fleet_commands import CommandRejected
from jobherd.supervisor.policy.run_state import RunState

if TYPE_CHECKING:
    from jobherd.supervisor.database.fleet_commands import FleetCommand
    from jobherd.supervisor.events.reload import FileWatch, ReloadAnswers, SettingsReload
    from jobherd.supervisor.events.run_state_changes import RunStateChanges
    from jobherd.supervisor.observe.status_report import StatusReport
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.reaper import Reaper
    from jobherd.supervisor.process.signals import SignalPipe

log = logging.getLogger("jobherd.supervisor")

SIGNAL_OF: Final = {"drain": signal.SIGTERM, "add": signal.SIGTTIN, "remove": signal.SIGTTOU, "reload": signal.SIGHUP}
"""Fleet commands that do the same as a signal."""


def objection(name: str, slot_table: SlotTable) -> str | None:
    """Return why one of `SIGNAL_OF` cannot be done now, or None.

    A second drain is allowed and ignored.
    """
    if name == "drain":
        return None
    if slot_table.run_state is not RunState.SERVING or slot_table.exit_code is not None:
        return "it is exiting already: nothing can be changed any more"
    if name == "add" and slot_table.wanted >= slot_table.limits.max_workers:
        return f"it has {slot_table.wanted} workers already, as many as max_workers allows"
    if name == "remove" and slot_table.wanted <= 0:
        return "it has no worker left to remove; to stop it, drain it"
    return None


class Signals:
    """Collects signals when the pipe is readable, and acts on them in `step`: deaths last."""

    def __init__(
        self,
        pipe: SignalPipe,
        slot_table: SlotTable,
        *,
        reaper: Reaper,
        settings_reload: SettingsReload,
        reload_answers: ReloadAnswers,
        files: FileWatch,
        run_state: RunStateChanges,
        status_report: StatusReport,
    ) -> None:
        self._pipe = pipe
        self._slot_table = slot_table
        self._reaper = reaper
        self._settings_reload = settings_reload
        self._reload_answers = reload_answers
        self._files = files
        self._run_state = run_state
        self._status_report = status_report
        self._received: set[int] = set()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Add the pipe to what the loop waits for."""
        selector.register(self._pipe, selectors.EVENT_READ, self._read)

    def wake_at(self, _now: float) -> float:
        """Return infinity: the pipe and the file watcher wake the loop."""
        return float("inf")

    def step(self, now: float) -> None:
        """Act on the signals and file changes since the last step."""
        received, self._received = self._received, set()
        if (changed := self._files.changed) and self._slot_table.run_state is RunState.SERVING:
            log.info("reloading, since files changed: %s", ", ".join(changed))
            self._act(signal.SIGHUP, now)
        self._files.changed = []
        for signum in sorted(received - {signal.SIGCHLD}):
            if signum == signal.SIGUSR1:
                for line in self._status_report.describe(now):
                    log.info("%s", line)
            else:
                log.info("got %s", signal.Signals(signum).name)
                self._act(signum, now)
        if signal.SIGCHLD in received:
            self._reaper.reap(now)

    def carry_out(self, command: FleetCommand, now: float) -> dict[str, object] | None:
        """Carry out a fleet command that does the same as a signal.

        A reload is answered later, once it is known whether the new code loads.

        Raises:
            CommandRejected: it cannot be done now.
        """
        if why := objection(command.name, self._slot_table):
            raise CommandRejected(why)
        problem = ""
        # a second SIGTERM releases running jobs; a second drain command does not
        if command.name != "drain" or self._slot_table.run_state is RunState.SERVING:
            problem = self._act(SIGNAL_OF[command.name], now)
        if command.name == "reload":
            self._reload_answers.wait(command.id, problem)
            return None
        return self._run_state.count_workers(now)

    def _read(self, _now: float) -> None:
        self._received |= self._pipe.read()

    def _act(self, signum: int, now: float) -> str:
        """Act on a signal; return an error text, or ""."""
        problem = self._settings_reload.reload() if signum == signal.SIGHUP else ""
        self._slot_table.on_signal(signum, now)
        return problem
