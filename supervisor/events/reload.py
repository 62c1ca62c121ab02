"""Reloads the settings and the handlers' code: on SIGHUP, by fleet command, or when files change.

The settings are applied at once. `plan.py` replaces the children; whether the new code loads is
known when the first of them is READY or has failed.
"""

from __future__ import annotations

import logging
import selectors
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.process.watcher import Watcher, places_of
from jobherd.supervisor.settings.child import child_settings

if TYPE_CHECKING:
    from jobherd.supervisor.database.fleet_commands import FleetCommands
    from jobherd.supervisor.database.interface import Registration
    from jobherd.supervisor.events.run_state_changes import RunStateChanges
    from jobherd.supervisor.observe.status_report import StatusReport
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.children import Children
    from jobherd.supervisor.settings.live import LiveSettings

log = logging.getLogger("jobherd.supervisor")


class SettingsReload:
    """Reads the settings again and gives them to the parts that store some of them."""

    def __init__(
        self,
        settings: LiveSettings,
        slot_table: SlotTable,
        *,
        lease: Registration,
        children: Children,
        status_report: StatusReport,
    ) -> None:
        self._settings = settings
        self._slot_table = slot_table
        self._lease = lease
        self._children = children
        self._status_report = status_report

    def reload(self) -> str:
        """Read and apply the settings; return an error text, or ""."""
        self._status_report.reload_begins()
        try:
            if not self._settings.reload():
                return ""
        except Exception as problem:
            log.error("reload failed; keeping the current settings: %s", problem)
            return f"reload failed; keeping the current settings: {problem}"
        settings = self._settings.now
        for name in settings.given.waiting:
            log.warning("%s was changed: restart the supervisor to apply it", name)
        before = self._children.settings
        self._children.settings = child_settings(settings, dsn=before.dsn, uplink=before.uplink)
        self._slot_table.limits = Limits.of(settings)
        self._slot_table.wanted = settings.workers
        # a child with a longer lease than the supervisor's would never claim
        self._lease.change_lease(settings.lease)
        return ""


class ReloadAnswers:
    """Answers the fleet commands for a reload once it is known whether the new code loads."""

    def __init__(self, commands: FleetCommands, slot_table: SlotTable, run_state: RunStateChanges) -> None:
        self._commands = commands
        self._slot_table = slot_table
        self._run_state = run_state
        self._waiting: list[tuple[int, str]] = []
        """The commands' ids, and the error in the settings."""

    def wait(self, command: int, problem: str) -> None:
        """Answer that command when the result of the reload is known."""
        self._waiting.append((command, problem))

    def wake_at(self, _now: float) -> float:
        """Return infinity: the result comes with a message or a death."""
        return float("inf")

    def step(self, now: float) -> None:
        """Answer the commands if the result is known."""
        if not self._waiting:
            return
        answer = self._slot_table.reload_answer
        if answer is None and (
            self._slot_table.run_state is not RunState.SERVING or self._slot_table.exit_code is not None
        ):
            answer = "it is exiting already: it reloads nothing any more"
        if answer is None:
            return
        for command, problem in self._waiting:
            if error := "; ".join(each for each in (problem, answer) if each):
                self._commands.answer(command, error=error)
            else:
                self._commands.answer(command, self._run_state.count_workers(now))
        self._waiting.clear()


class FileWatch:
    """Watches the application's files for `--reload`.

    Attributes:
        changed: names of files that have changed since the owner last took them.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.changed: list[str] = []
        self._selector = selector
        self._watcher: Watcher | None = None

    @property
    def fds(self) -> list[int]:
        """Descriptors that a child must close."""
        return [] if self._watcher is None else [self._watcher.fd]

    def start(self, settings: LiveSettings) -> None:
        """Start the watching process."""
        try:
            self._watcher = Watcher(places_of(settings.now))
        except OSError as problem:
            log.error("--reload does not work, the watcher process cannot be started: %s", problem.strerror)
            return
        self._selector.register(self._watcher.fd, selectors.EVENT_READ, self._read)

    def close(self) -> None:
        """End the watching process."""
        if self._watcher is not None:
            self._selector.unregister(self._watcher.fd)
            self._watcher.close()
            self._watcher = None

    def _read(self, _now: float) -> None:
        changed = None if self._watcher is None else self._watcher.read()
        if changed is None:
            log.warning("the process that watches files has ended: --reload no longer works, SIGHUP does")
            self.close()
        else:
            self.changed += changed
