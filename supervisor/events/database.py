"""Handles events of the database session: notifications, renewals, rejections, the loss of the session.

Any login of the database can notify, so a notification causes a query or a wake-up, nothing else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.database.notifications import (
    Cancel,
    Command,
    Due,
    Gates,
    Pooler,
    Rejected,
    Renewal,
    TableWork,
    Work,
    parse,
)
from jobherd.supervisor.policy.child_kinds import GATEWAY, MAINTENANCE

if TYPE_CHECKING:
    from jobherd.supervisor.crash.recovery import CrashRecovery
    from jobherd.supervisor.database.cancels import Cancels
    from jobherd.supervisor.database.connection import DatabaseConnection
    from jobherd.supervisor.database.fleet_commands import FleetCommands
    from jobherd.supervisor.database.lease import Lease
    from jobherd.supervisor.database.notifications import Event
    from jobherd.supervisor.observe.fleet_report import FleetReport
    from jobherd.supervisor.observe.status_report import StatusReport
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.offload import Offloader
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")

QUIET: Final = 60.0
"""Seconds between two log lines about the same rejected statement."""


class DatabaseEvents:
    """Processes the events of the session and of the parts that use it.

    Attributes:
        only_work: all notifications of the last step were about work.
    """

    def __init__(
        self,
        db: DatabaseConnection,
        slot_table: SlotTable,
        control: ControlBlock,
        settings: LiveSettings,
        *,
        lease: Lease,
        cancels: Cancels,
        commands: FleetCommands,
        recovery: CrashRecovery,
        offloader: Offloader,
        fleet_report: FleetReport,
        status_report: StatusReport,
    ) -> None:
        self.only_work = False
        self._db = db
        self._slot_table = slot_table
        self._control = control
        self._settings = settings
        self._lease = lease
        self._cancels = cancels
        self._commands = commands
        self._recovery = recovery
        self._offloader = offloader
        self._fleet_report = fleet_report
        self._status_report = status_report
        self._trouble = ""
        self._pooler_seen = False
        self._quiet_until: dict[str, float] = {}
        """By statement: until when a rejection of it is not logged again."""

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest: each event causes a turn."""
        return 0.0 if self._lease.renewed or self._db.notifications or self._db.happened else float("inf")

    def step(self, now: float) -> None:
        """Process what has happened since the last step."""
        was_up = self._slot_table.database_since is not None
        self._note_availability(now)
        self.only_work = was_up and self._slot_table.database_since is not None
        events, self._db.happened = self._db.happened, []
        for event in events:
            self._note_event(event, now)
        renewals, self._lease.renewed = self._lease.renewed, []
        for renewed in renewals:
            if renewed.commands:
                self._commands.query()
            self._fleet_report.renewed(now)
        self._take_notifications(now)
        if events or renewals:
            self.only_work = False

    # -- availability

    def _note_availability(self, now: float) -> None:
        db, slot_table = self._db, self._slot_table
        before, up = slot_table.database_since is not None, db.link is Link.UP and not db.write_problem
        trouble = db.write_problem or db.trouble
        if up and not before:
            log.info("the database is there")
            slot_table.on_database_up(now)
            self._recovery.hurry()
            self._control.bump()
        elif before and not up:
            log.warning("the database is away: %s", trouble)
            slot_table.on_database_down()
        elif not up and trouble and trouble != self._trouble:
            log.warning("no database: %s", trouble)
        if not up and 0 < self._settings.now.db_retry_max_attempts < db.failures:
            slot_table.on_database_failed()
        self._trouble = trouble

    # -- events of the session

    def _note_event(self, event: Event, now: float) -> None:
        match event:
            case Rejected(statement, why) if statement != "wake/listen_jobs":  # `notify_mode` logs a rejected LISTEN
                self._log_rejected(statement, why, now)
            case Pooler() if not self._pooler_seen:
                self._pooler_seen = True
                if self._db.setup.listen_disabled:
                    log.warning(
                        "a pooler is between this supervisor and the server: LISTEN does not work through it, "
                        "and jobs wait for the poll; set listen_dsn to the server's own address, or to this one if it "
                        "is in session mode"
                    )
                else:
                    log.info(
                        "listening through the pooler that listen_dsn leads to: it must be in session mode, or jobs "
                        "wait "
                        "for the poll"
                    )

    def _log_rejected(self, name: str, why: str, now: float) -> None:
        """Log that the database rejected a statement, at most once a minute for each statement.

        It may reject several statements many times a second, for hours.
        """
        if now >= self._quiet_until.get(name, 0.0):
            self._quiet_until[name] = now + QUIET
            log.error("the database rejected a statement of the supervisor: %s: %s", name, why)

    # -- notifications

    def _take_notifications(self, now: float) -> None:
        payloads, self._db.notifications = self._db.notifications, []
        self._status_report.counts["notifications"] += len(payloads)
        wakeups = 0
        for payload in payloads:
            match parse(payload):
                case Work(queue):
                    if queue == "*" or self._settings.now.serves(queue):
                        wakeups += 1
                    else:  # Remote workers may serve it.
                        self._slot_table.kinds_to_wake.add(GATEWAY)
                        self._control.bump()
                    continue
                case TableWork():
                    self._slot_table.request_wakeups()  # the woken worker finds out which table it is
                    self._control.bump()
                    continue
                case Renewal(supervisor):
                    self._lease.echoed(supervisor)
                case Due():
                    self._slot_table.kinds_to_wake.add(MAINTENANCE)
                case Gates():
                    self._slot_table.on_gates_changed(now)
                    self._offloader.hurry(now)
                    self._control.gates_changed()
                case Cancel():
                    self._cancels.query()
                    # The job may have returned to the queue by now, or run on a remote worker.
                    self._slot_table.kinds_to_wake |= {MAINTENANCE, GATEWAY}
                case Command(supervisor):
                    self._commands.notified(supervisor)
            self.only_work = False
        if wakeups:
            wakeups = -(-wakeups // self._settings.now.coalesce_notifies)
            self._status_report.counts["wakes"] += wakeups
            self._slot_table.request_wakeups(wakeups)
            self._control.bump()
