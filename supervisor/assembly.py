"""Builds the supervisor of `jobherd run`: creates its parts and connects them.

A part has references only to parts that are built before it. It reaches an earlier part through a
fact in the slot table, or through an event that a component in `events/` processes.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

from jobherd import sql
from jobherd.supervisor.crash.death_messages import DeathMessages
from jobherd.supervisor.crash.memory_growth import MemoryGrowth
from jobherd.supervisor.crash.oom import OomWatch
from jobherd.supervisor.crash.recovery import CrashRecovery
from jobherd.supervisor.database.cancels import Cancels
from jobherd.supervisor.database.connection import DatabaseConnection
from jobherd.supervisor.database.ended_children import EndedChildren
from jobherd.supervisor.database.fleet_commands import FleetCommands
from jobherd.supervisor.database.identity import identity
from jobherd.supervisor.database.lease import Lease
from jobherd.supervisor.database.notify_mode import NotifyMode
from jobherd.supervisor.database.reclaim import Reclaim
from jobherd.supervisor.database.session import DatabaseSession
from jobherd.supervisor.database.unregister import unregister
from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.events.commands import CommandRunner
from jobherd.supervisor.events.database import DatabaseEvents
from jobherd.supervisor.events.poll import Poll
from jobherd.supervisor.events.recovered import RecoveredChildren
from jobherd.supervisor.events.reload import FileWatch, ReloadAnswers, SettingsReload
from jobherd.supervisor.events.run_state_changes import RunStateChanges
from jobherd.supervisor.events.signals import SIGNAL_OF, Signals
from jobherd.supervisor.loop import Loop
from jobherd.supervisor.observe.fleet_report import FleetReport
from jobherd.supervisor.observe.log_stream import LogStream
from jobherd.supervisor.observe.log_writer import LogWriter
from jobherd.supervisor.observe.loop_lag import LoopLag
from jobherd.supervisor.observe.sampler import Sampler
from jobherd.supervisor.observe.startup_log import StartupLog
from jobherd.supervisor.observe.status_report import StatusReport
from jobherd.supervisor.observe.systemd import ServiceManager
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.process import spawn
from jobherd.supervisor.process.board_reader import BoardReader
from jobherd.supervisor.process.children import Children
from jobherd.supervisor.process.name_lookup import NameLookups
from jobherd.supervisor.process.offload import Offloader
from jobherd.supervisor.process.output_pipe import OutputPipes
from jobherd.supervisor.process.reaper import Reaper
from jobherd.supervisor.process.signals import SignalPipe
from jobherd.supervisor.process.wake_writer import WakeWriter
from jobherd.supervisor.serving import Serving
from jobherd.supervisor.settings.child import child_settings
from jobherd.supervisor.settings.live import LiveSettings
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.settings.definitions import Settings


class Supervisor(Serving):
    """The supervisor of `jobherd run`, with a database session."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        *,
        reload: Callable[[], Settings] | None = None,
        signals: SignalPipe | None = None,
        log_stream: LogStream | None = None,
    ) -> None:
        me = identity()
        sql.load_all()  # later there may be no file descriptor left to read a statement
        self.me = me
        self.settings = LiveSettings(settings, reload)
        self.slot_table = slot_table = SlotTable(Limits.of(settings))
        self.selector = selectors.DefaultSelector()
        self.signal_pipe = signals or SignalPipe()
        self.log_stream = log_stream or LogStream()
        self.control = control = ControlBlock()
        self.boards = boards = [StatusBoard(f"jobherd-{slot.number}") for slot in slot_table.slots]
        self.deaths = DeathMessages()
        self.files = FileWatch(self.selector)
        manager, lag = ServiceManager(), LoopLag()

        # the database
        self.db = DatabaseConnection(
            settings.listen_dsn or dsn,
            schema=settings.schema,
            application_name=f"jobherd:supervisor:{me.pid}",
            retry_initial=settings.db_retry_initial,
            retry_max=settings.db_retry_max,
            listens=settings.listen_dsn is not None,
        )
        self.session = DatabaseSession(self.db, self.selector)
        names = NameLookups(self.db, self.selector)
        self.cancels = Cancels(self.db, slot_table)
        self.reclaim = Reclaim(self.db, slot_table, me)
        ended_children = EndedChildren(self.db, slot_table)
        self.lease = Lease(
            self.db,
            slot_table,
            control,
            cancels=self.cancels,
            reclaim=self.reclaim,
            ended_children=ended_children,
            me=me,
            lease=settings.lease,
        )
        self.commands = FleetCommands(self.db, slot_table)
        self.recovery = CrashRecovery(self.db, slot_table, host=me.host)

        # the processes
        self.sampler = Sampler(slot_table, boards, self.commands, host=me.host)
        growth, oom, outputs = MemoryGrowth(self.sampler), OomWatch(), OutputPipes()
        self.offloader = Offloader(slot_table, boards, self.db, host=me.host)
        self.board_reader = BoardReader(slot_table, boards, outputs, growth=growth, oom=oom)
        inherited = spawn.Inherited(
            self.selector,
            self.signal_pipe,
            self.db,
            boards,
            others=(manager, self.log_stream, self.deaths, names, self.files),
            deaths=self.deaths.reading,
        )
        self.children = Children(
            slot_table,
            control,
            inherited,
            settings=child_settings(settings, dsn=dsn),
            outputs=outputs,
            offloader=self.offloader,
            growth=growth,
        )
        self.poll = Poll(slot_table, self.settings)
        wake_writer = WakeWriter(slot_table, self.board_reader, self.children)
        reaper = Reaper(slot_table, self.children, boards, control, self.recovery, growth=growth, oom=oom)
        notify_mode = NotifyMode(self.db, slot_table, control, self.board_reader)
        self.until_empty = UntilEmpty(slot_table, boards, self.db, self.settings)

        # what is published
        self.fleet_report = FleetReport(
            self.db, slot_table, self.lease, boards, commands=self.commands, settings=self.settings
        )
        self.status_report = StatusReport(
            slot_table,
            control,
            boards,
            self.db,
            self.lease,
            manager=manager,
            me=me,
            log_stream=self.log_stream,
            lag=lag,
        )

        # what each event means
        self.run_state = RunStateChanges(
            slot_table,
            control,
            self.settings,
            boards=self.board_reader,
            manager=manager,
            until_empty=self.until_empty,
            status_report=self.status_report,
        )
        self.events = DatabaseEvents(
            self.db,
            slot_table,
            control,
            self.settings,
            lease=self.lease,
            cancels=self.cancels,
            commands=self.commands,
            recovery=self.recovery,
            offloader=self.offloader,
            fleet_report=self.fleet_report,
            status_report=self.status_report,
        )
        settings_reload = SettingsReload(
            self.settings, slot_table, lease=self.lease, children=self.children, status_report=self.status_report
        )
        self.reload_answers = ReloadAnswers(self.commands, slot_table, self.run_state)
        self.signals = Signals(
            self.signal_pipe,
            slot_table,
            reaper=reaper,
            settings_reload=settings_reload,
            reload_answers=self.reload_answers,
            files=self.files,
            run_state=self.run_state,
            status_report=self.status_report,
        )
        self.command_runner = CommandRunner(
            self.commands,
            {
                **dict.fromkeys(SIGNAL_OF, self.signals.carry_out),
                "report": self.fleet_report.report,
                "stack": self.sampler.stack,
                "profile": self.sampler.profile,
            },
        )
        recovered = RecoveredChildren(
            self.recovery,
            slot_table,
            control,
            deaths=self.deaths,
            status_report=self.status_report,
            settings=self.settings,
        )

        # the order of a turn
        database = (
            names,
            self.session,
            self.lease,
            self.reclaim,
            ended_children,
            self.cancels,
            notify_mode,
            self.session,
            self.events,
        )
        self.loop = Loop(
            slot_table,
            control,
            self.selector,
            children=self.children,
            offloader=self.offloader,
            db=self.db,
            first=(self.session, self.events, wake_writer),
            events=self.events,
            note=(
                *database,
                self.signals,
                # Before the plan: until the request is sent, a job of a dead child waits.
                self.recovery,
                self.session,
                recovered,
                self.poll,
                self.board_reader,
                self.offloader,
                self.sampler,
                self.until_empty,
                self.command_runner,  # fleet commands take effect in this turn
                self.fleet_report,
                self.run_state,
            ),
            after=(
                wake_writer,
                self.reload_answers,
                StartupLog(slot_table, boards, self.settings),
                LogWriter(slot_table, self.log_stream),
                self.status_report,
                *database,
            ),
            frequent=(self.offloader, self.sampler),
            run_state=self.run_state,
            lag=lag,
        )

    def leave(self) -> None:
        """Unregister the supervisor."""
        unregister(self.db, self.session, self.lease, self.slot_table, self.selector)
