"""Child-process operations: fork, wake, dismiss, signal, read messages, reap.

It carries out the actions of a plan and records in the slot table what happened. `plan.py` decides what
is done and when. `reaper.py` explains deaths. It never blocks.
"""

from __future__ import annotations

import logging
import os
import random
import resource  # noqa: F401  # os.wait4 imports it at the first death, when no file descriptor may be left to open it
import selectors
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from jobherd.supervisor.crash.revision import revision
from jobherd.supervisor.crash.stack_signal import signal_for_stacks
from jobherd.supervisor.policy.actions import Dismiss, Fork, Interrupt, Kill, WakeChild
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.exits import restart_at
from jobherd.supervisor.process import spawn
from jobherd.supervisor.settings.child import for_kind
from jobherd.workers.ipc.pipes import Inbox, wake
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.supervisor.crash.memory_growth import MemoryGrowth
    from jobherd.supervisor.policy.actions import Action
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.offload import Offloader
    from jobherd.supervisor.process.output_pipe import OutputPipes
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.process.spec import ChildSettings

log = logging.getLogger("jobherd.supervisor")


@dataclass(frozen=True, slots=True)
class Reaped:
    """A process that has ended."""

    slot: Slot | None
    """None: not a child of this supervisor's slots, but an inherited process or a name look-up."""
    exit: Exit
    output: bytes = b""
    """What it printed after its last finished job."""


class Children:
    """Forks and signals children, reads their messages and reaps them, by slot.

    Attributes:
        settings: what the next child is started with.
        asked_for_stacks: numbers of the slots whose children were signaled to write their stacks before
            they were killed.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        control: ControlBlock,
        inherited: spawn.Inherited,
        *,
        settings: ChildSettings,
        outputs: OutputPipes,
        offloader: Offloader,
        growth: MemoryGrowth,
    ) -> None:
        self.settings = settings
        self.asked_for_stacks: set[int] = set()
        self._slot_table = slot_table
        self._control = control
        self._inherited = inherited
        self._boards = inherited.boards
        self._selector = inherited.selector
        self._ends = inherited.ends
        self._outputs = outputs
        self._offloader = offloader
        self._growth = growth
        self._inboxes: dict[int, Inbox] = {}
        self._revision_read = (-1, "")
        """The reload generation whose code revision was read last, and that revision."""

    # -- record what happened

    def read_messages(self, number: int, now: float) -> None:
        """Process the messages of a slot's child."""
        slot, ends = self._slot_table.slots[number], self._ends.get(number)
        if ends is None:
            return
        try:
            data = os.read(ends.report, 65536)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(ends.report)  # it is dying: SIGCHLD reports the rest
            return
        before = slot.state
        self._offloader.expect_work(now)
        for report in self._inboxes[number].take(data):
            self._slot_table.on_message(slot, report, now)
        if slot.state is not before:
            self._growth.begin(slot)
            log.info("%s is ready", slot.name, extra={"pid": slot.process.pid, "incarnation": slot.process.incarnation})

    def note_stopped(self, now: float) -> None:
        """Record every child that was stopped or continued."""
        while (change := _next(os.WSTOPPED | os.WCONTINUED)) is not None:
            slot = self._slot_of(change.si_pid)
            if slot is not None and change.si_code == os.CLD_STOPPED:
                self._slot_table.on_stopped(slot, change.si_status, now)
            elif slot is not None and change.si_code == os.CLD_CONTINUED:
                self._slot_table.on_continued(slot)

    def reap(self, now: float) -> Iterator[Reaped]:
        """Reap the processes that have ended, one by one, and close their pipes."""
        while gone := _next(os.WEXITED | os.WNOWAIT):
            slot = self._slot_of(gone.si_pid)
            if slot is not None:
                # Until it is reaped, its pid cannot be reused, so this kills what is left of its
                # process group.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(slot.process.pid, signal.SIGKILL)
            pid, status, usage = os.wait4(gone.si_pid, os.WNOHANG)
            if slot is not None and not pid:
                continue
            exit_ = Exit(
                os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                os.WCOREDUMP(status),
                usage.ru_maxrss * 1024,
                usage.ru_utime,
                usage.ru_stime,
            )
            if slot is None:
                yield Reaped(None, exit_)
            else:
                reach("parent:reaped")
                self._close_pipes(slot, now)
                yield Reaped(slot, exit_, self._outputs.close(slot.number))

    def _slot_of(self, pid: int) -> Slot | None:
        return next((slot for slot in self._slot_table.alive() if slot.process.pid == pid), None)

    def _close_pipes(self, slot: Slot, now: float) -> None:
        """Process a dead child's last messages and close the supervisor's ends of its pipes."""
        ends = self._ends.pop(slot.number)
        with suppress(BlockingIOError, OSError):
            while data := os.read(ends.report, 65536):
                for report in self._inboxes[slot.number].take(data):
                    self._slot_table.on_message(slot, report, now)
        with suppress(KeyError, ValueError):
            self._selector.unregister(ends.report)
        os.close(ends.report)
        with suppress(OSError):
            os.close(ends.wake)

    # -- act

    def do(self, action: Action, now: float) -> None:
        """Carry out one action of a plan that concerns a process."""
        match action:
            case Fork(slot, reserved):
                self._fork(slot, reserved, now)
            case WakeChild(slot):
                if (ends := self._ends.get(slot.number)) is not None:
                    wake(ends.wake)
                    self._offloader.expect_work(now)
            case Dismiss(slot):
                if (ends := self._ends.get(slot.number)) is not None:
                    self._boards[slot.number].dismiss()
                    os.close(ends.wake)
                    self._ends[slot.number] = replace(ends, wake=os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC))
            case Interrupt(slot, what):
                self._boards[slot.number].interrupt(what)
                self._signal(slot, signal.SIGUSR2, group=False)
                log.info(
                    "%s gets a request to stop job %d: %s",
                    slot.name,
                    what.job,
                    what.reason.name.lower(),
                    extra={"token": what.token},
                )
            case Kill(slot, signum):
                if signum is not signal.SIGKILL and signal_for_stacks(slot.process.pid, self._boards[slot.number]):
                    # its post-mortem needs the stacks, which cannot be read after its death
                    self.asked_for_stacks.add(slot.number)
                job = slot.seen.work.job or None  # logs leave None out
                log.warning("%s gets %s", slot.name, signum.name, extra={"pid": slot.process.pid, "job": job})
                self._signal(slot, signum, group=True)

    def _fork(self, slot: Slot, reserved: str, now: float) -> None:
        slot_table, board = self._slot_table, self._boards[slot.number]
        board.clear()
        slot_table.incarnations += 1
        code_version = self.settings.code_version or self._revision()
        jitter = random.uniform(-1, 1)
        settings = replace(self.settings, served=(reserved,)) if reserved else self.settings
        try:
            pid, ends = spawn.fork_child(
                slot,
                incarnation=slot_table.incarnations,
                supervisor=slot_table.supervisor,
                control=self._control,
                settings=for_kind(settings, slot.kind.name),
                inherited=self._inherited,
            )
        except OSError as problem:
            slot_table.on_fork_failed(slot, restart_at(slot_table.limits, slot.failures + 1, now, jitter))
            log.error("the system rejects another process: %s", problem.strerror, extra={"slot": slot.number})
            return
        self._ends[slot.number], self._inboxes[slot.number] = ends, Inbox()
        if ends.output >= 0:
            self._outputs.open(slot.number, ends.output, board)
        self._selector.register(ends.report, selectors.EVENT_READ, partial(self.read_messages, slot.number))
        slot_table.on_fork(
            slot,
            pid=pid,
            incarnation=slot_table.incarnations,
            now=now,
            started=board.jobs_started,
            jitter=jitter,
            reserved=reserved,
            code_version=code_version,
        )

    def _revision(self) -> str:
        """Return the revision of the code on disk.

        It is read once per reload: a hanging disk must not delay every fork.
        """
        generation, known = self._revision_read
        if generation != self._slot_table.generation:
            generation, known = self._revision_read = self._slot_table.generation, revision(self.settings.app_dir)
        return known

    def _signal(self, slot: Slot, signum: signal.Signals, *, group: bool) -> None:
        # Its pid cannot be reused until it is reaped, and only this class reaps.
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(slot.process.pid, signum)  # it may have moved to another group and left processes in this one
        with suppress(ProcessLookupError, PermissionError):
            if not group or os.getpgid(slot.process.pid) != slot.process.pid:
                os.kill(slot.process.pid, signum)


def _next(changes: int) -> os.waitid_result | None:
    """Return a child with one of these state changes; None if there is none."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, changes | os.WNOHANG)
    return None
