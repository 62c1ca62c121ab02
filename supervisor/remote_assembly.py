"""Builds the supervisor of `jobherd work`, which has an uplink to a gateway in place of the database.

It has no part that reads or writes the queue's tables: no lease, no notifications, no fleet commands, no report. The
gateway has these for it.
"""

from __future__ import annotations

import selectors
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jobherd.supervisor.crash.death_messages import DeathMessages
from jobherd.supervisor.crash.memory_growth import MemoryGrowth
from jobherd.supervisor.crash.oom import OomWatch
from jobherd.supervisor.crash.recovery import CrashRecovery
from jobherd.supervisor.database.fleet_commands import FleetCommands
from jobherd.supervisor.database.identity import identity
from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.events.recovered import RecoveredChildren
from jobherd.supervisor.events.reload import FileWatch, ReloadAnswers, SettingsReload
from jobherd.supervisor.events.run_state_changes import RunStateChanges
from jobherd.supervisor.events.signals import Signals
from jobherd.supervisor.events.uplink import UplinkEvents
from jobherd.supervisor.loop import Loop
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
from jobherd.supervisor.process.offload import Offloader
from jobherd.supervisor.process.output_pipe import OutputPipes
from jobherd.supervisor.process.reaper import Reaper
from jobherd.supervisor.process.signals import SignalPipe
from jobherd.supervisor.process.wake_writer import WakeWriter
from jobherd.supervisor.serving import Serving
from jobherd.supervisor.settings.child import child_settings, uplink_settings
from jobherd.supervisor.settings.live import LiveSettings
from jobherd.supervisor.uplink.link import UplinkLink
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.settings.definitions import Settings

REGISTERED = 1
"""The supervisor's number. No other supervisor shares its uplink."""


class RemoteSupervisor(Serving):
    """A supervisor whose jobs come from a gateway, and its parts."""

    def __init__(
        self,
        settings: Settings,
        *,
        reload: Callable[[], Settings] | None = None,
        signals: SignalPipe | None = None,
        log_stream: LogStream | None = None,
    ) -> None:
        me = identity()
        self.me = me
        self.settings = LiveSettings(settings, reload)
        self.slot_table = slot_table = SlotTable(Limits.of(settings))
        slot_table.on_registered(REGISTERED)
        self.selector = selectors.DefaultSelector()
        self.signal_pipe = signals or SignalPipe()
        log_stream = log_stream or LogStream()
        control = ControlBlock()
        control.notified = True  # new jobs wake an idle worker by its own connection to the uplink
        boards = [StatusBoard(f"jobherd-{slot.number}") for slot in slot_table.slots]
        self.deaths = DeathMessages()
        self.files = FileWatch(self.selector)
        manager, lag = ServiceManager(), LoopLag()

        # the uplink
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-work-"))
        self.link = UplinkLink(slot_table, self.selector, self._folder)
        recovery = CrashRecovery(self.link, slot_table, host=me.host)
        commands = FleetCommands(self.link, slot_table)  # nothing sends any

        # the processes
        growth, oom, outputs = (
            MemoryGrowth(Sampler(slot_table, boards, commands, host=me.host)),
            OomWatch(),
            OutputPipes(),
        )
        offloader = Offloader(slot_table, boards, self.link, host=me.host)
        board_reader = BoardReader(slot_table, boards, outputs, growth=growth, oom=oom)
        others = (manager, log_stream, self.deaths, self.files)
        inherited = spawn.Inherited(self.selector, self.signal_pipe, self.link, boards, others=others)
        children = Children(
            slot_table,
            control,
            inherited,
            settings=child_settings(settings, dsn="", uplink=uplink_settings(settings, self._folder)),
            outputs=outputs,
            offloader=offloader,
            growth=growth,
        )
        wake_writer = WakeWriter(slot_table, board_reader, children)
        reaper = Reaper(slot_table, children, boards, control, recovery, growth=growth, oom=oom)

        # what is published
        status_report = StatusReport(
            slot_table, control, boards, self.link, self.link, manager=manager, me=me, log_stream=log_stream, lag=lag
        )

        # what each event means
        run_state = RunStateChanges(
            slot_table,
            control,
            self.settings,
            boards=board_reader,
            manager=manager,
            until_empty=UntilEmpty(slot_table, boards, self.link, self.settings),
            status_report=status_report,
        )
        events = UplinkEvents(
            self.link, slot_table, control, boards=board_reader, recovery=recovery, offloader=offloader
        )
        reload_answers = ReloadAnswers(commands, slot_table, run_state)
        self.signals = Signals(
            self.signal_pipe,
            slot_table,
            reaper=reaper,
            settings_reload=SettingsReload(
                self.settings, slot_table, lease=self.link, children=children, status_report=status_report
            ),
            reload_answers=reload_answers,
            files=self.files,
            run_state=run_state,
            status_report=status_report,
        )
        recovered = RecoveredChildren(
            recovery, slot_table, control, deaths=self.deaths, status_report=status_report, settings=self.settings
        )

        # the order of a turn
        self.loop = Loop(
            slot_table,
            control,
            self.selector,
            children=children,
            offloader=offloader,
            db=self.link,
            first=(self.link, events, wake_writer),
            events=events,
            note=(self.signals, recovery, self.link, recovered, board_reader, offloader, run_state),
            after=(
                wake_writer,
                reload_answers,
                StartupLog(slot_table, boards, self.settings),
                LogWriter(slot_table, log_stream),
                status_report,
                self.link,
            ),
            frequent=(offloader,),
            run_state=run_state,
            lag=lag,
        )

    def leave(self) -> None:
        """Close the link, and delete the folder of its sockets."""
        self.link.close()
        shutil.rmtree(self._folder, ignore_errors=True)
