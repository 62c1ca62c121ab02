"""Child-process operations: fork, signal, read pipes and status boards, reap.

It carries out the actions of a plan and records on the fleet what happened. `plan.py` decides what
is done and when. It never blocks.
"""

from __future__ import annotations

import logging
import os
import random
import resource  # noqa: F401  # os.wait4 imports it at the first death, when no file descriptor may be left to open it
import selectors
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.crash import orphans
from jobherd.supervisor.crash.memory_growth import AFTER, MemoryGrowth
from jobherd.supervisor.crash.oom import OomWatch
from jobherd.supervisor.crash.postmortem import examine
from jobherd.supervisor.crash.recovery import DeadChild
from jobherd.supervisor.crash.revision import revision
from jobherd.supervisor.observe.sampler import ask_stacks
from jobherd.supervisor.policy.actions import Dismiss, Finish, Fork, Interrupt, Kill, Offload, WakeChild
from jobherd.supervisor.policy.plan import NEVER
from jobherd.supervisor.policy.slot import End, Exit, Slot, Stage, State
from jobherd.supervisor.process import spawn
from jobherd.supervisor.process.offload import Offloader, outcomes_of
from jobherd.supervisor.process.output_pipe import OutputPipe
from jobherd.supervisor.settings.child import for_kind
from jobherd.workers.inspect.captured import digest
from jobherd.workers.ipc.pipes import Inbox, nudge
from jobherd.workers.ipc.status_board import CurrentWork, Phase, StatusBoard
from jobherd.workers.system import procfs
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.database.connection import DatabaseConnection
    from jobherd.supervisor.policy.actions import Action
    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.supervisor.process.signals import SignalPipe
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.process.spec import ChildSettings

log = logging.getLogger("jobherd.supervisor")

LOOK: Final = 0.25
"""Seconds between reads of the boards while any job runs: a job's deadline is noticed at most this
late."""
LOOK_IDLE: Final = 1.0
FLOOD: Final = 0.001
"""Seconds to the next read while a worker prints more than its pipe holds."""
HEIRS: Final = 1.0
"""Seconds after a child's death in which the processes it left behind are looked for. Later, a new
child of the supervisor is more likely a running job's daemon or an unrelated process."""


class Children:
    """Every child process, by slot.

    Attributes:
        settings: what the next child is started with.
    """

    def __init__(
        self,
        fleet: Fleet,
        control: ControlBlock,
        selector: selectors.BaseSelector,
        signals: SignalPipe,
        db: DatabaseConnection,
        *,
        settings: ChildSettings,
        fds: Callable[[], list[int]],
        deaths: int,
        bury: Callable[[DeadChild], None],
    ) -> None:
        self.settings = settings
        self.boards = [StatusBoard(f"jobherd-{slot.number}") for slot in fleet.slots]
        self._fleet = fleet
        self._control = control
        self._selector = selector
        self._signals = signals
        self._db = db
        self._fds = fds
        self._deaths = deaths
        self._bury = bury
        self._ends: dict[int, spawn.Ends] = {}
        self._drains: dict[int, OutputPipe] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._oom = OomWatch()
        self.growth = MemoryGrowth()
        self._strays = orphans.Orphans()
        self._look_at = 0.0
        self.offloader = Offloader(fleet, self.boards, db, host=lambda: self.settings.host)
        self._heirs_until = 0.0
        self._read = (-1, "")
        """The reload generation whose code revision is known, and that revision."""
        self._told_to_say: set[int] = set()
        """Slots whose children were asked for their stacks before they are ended."""

    # -- record what happened

    def listen(self, number: int, now: float) -> bool:
        """Process the messages of a slot's child; return whether they changed its state."""
        slot, ends = self._fleet.slots[number], self._ends.get(number)
        if ends is None:
            return False
        try:
            data = os.read(ends.report, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(ends.report)  # it is dying: SIGCHLD reports the rest
            return False
        before = slot.state
        self.offloader.expect_work(now)
        for report in self._inboxes[number].take(data):
            self._fleet.on_message(slot, report, now)
        if slot.state is not before:
            self.growth.begin(slot)
            log.info("%s is ready", slot.name, extra={"pid": slot.pid, "incarnation": slot.incarnation})
        return slot.state is not before

    def reap(self, now: float) -> None:
        """Record every death, and every child that was stopped or continued.

        A pid without a slot is an inherited process, or a finished name look-up.
        """
        self._note_stopped(now)
        strangers = 0
        while gone := _next(os.WEXITED | os.WNOWAIT):
            slot = next((slot for slot in self._fleet.alive() if slot.pid == gone.si_pid), None)
            if slot is not None:
                # Until it is reaped, its pid cannot be reused, so this kills what is left of its
                # process group.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(slot.pid, signal.SIGKILL)
            pid, status, usage = os.wait4(gone.si_pid, os.WNOHANG)
            strangers += slot is None
            if slot is not None and pid:
                reach("parent:reaped")
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                ours = slot.stop_sequence is not None and slot.stop_sequence.stage is Stage.KILLED
                oom = signum == signal.SIGKILL and not ours and self._oom.claim(now)
                exit_ = Exit(
                    code, signum, os.WCOREDUMP(status), usage.ru_maxrss * 1024, usage.ru_utime, usage.ru_stime, oom
                )
                self._record_death(slot, exit_, now)
        if strangers and now < self._heirs_until:
            self._end_strays()  # its own children are the supervisor's now: a daemon one level further down

    def _note_stopped(self, now: float) -> None:
        while (change := _next(os.WSTOPPED | os.WCONTINUED)) is not None:
            slot = next((slot for slot in self._fleet.alive() if slot.pid == change.si_pid), None)
            if slot is not None and change.si_code == os.CLD_STOPPED:
                self._fleet.stopped(slot, change.si_status, now)
            elif slot is not None and change.si_code == os.CLD_CONTINUED:
                self._fleet.continued(slot)

    def _end_strays(self) -> None:
        for pid in self._strays.end(list(self._fleet.alive())):
            log.info("ended process %d, which a job had left behind", pid)

    def _record_death(self, slot: Slot, exit_: Exit, now: float) -> None:
        ends = self._ends.pop(slot.number)
        self._drain_report(slot, ends, now)
        with suppress(KeyError, ValueError):
            self._selector.unregister(ends.report)
        os.close(ends.report)
        with suppress(OSError):
            os.close(ends.wake)
        board = self.boards[slot.number]
        drain = self._drains.pop(slot.number, None)
        said = b"" if drain is None else drain.rest()
        record = board.now() or CurrentWork(Phase.BOOTING)
        policy = board.tally.policy(record.kind)
        if record.runs and board.begun != record.job:  # announced on the board, but not started
            record = record._replace(job=0) if policy.table else record._replace(phase=Phase.CLAIMING)
        slot.now = record
        pid, was = slot.pid, slot.state
        death = self._fleet.on_exit(slot, exit_, now=now, started=board.jobs_started, jitter=random.uniform(-1, 1))
        limits = self._fleet.limits
        report = examine(
            death,
            board,
            record,
            policy.name,
            asked=board.stacks() if slot.number in self._told_to_say else b"",
            grown=self.growth.seen(slot, board, record),
            memory=self._oom.evidence()
            if exit_.signal == signal.SIGKILL and death.cause in ("oom", "signal")
            else None,
            lease_age=now - (self._control.lease_deadline - limits.lease) if self._control.lease_deadline else None,
            code_version=slot.code_version,
        )
        self._told_to_say.discard(slot.number)
        others = board.company(record) if record.job else []
        self._bury(
            DeadChild(death, record, policy, report, outcomes_of(board), others, digest(said), cleared=board.cleared)
        )
        expected = death.cause in ("left", "worn", "handlers")
        level = logging.INFO if expected else logging.WARNING
        text = f"{slot.name} left" if death.cause in ("left", "worn") else report.sentence
        log.log(
            level,
            "%s",
            text,
            extra={"pid": pid, "cause": death.cause, "was": was.value, **({"job": record.job} if record.job else {})},
        )
        told = "It was asked to leave, and left." if death.cause in ("left", "worn") else report.sentence
        self._fleet.explained(
            slot,
            End(
                slot.name,
                pid,
                death.cause,
                told,
                now,
                0 if policy.table else record.job,
                policy.name if record.job else "",
            ),
        )
        self._end_strays()
        self._heirs_until = now + HEIRS
        slot.now = CurrentWork(Phase.BOOTING)

    def _drain_report(self, slot: Slot, ends: spawn.Ends, now: float) -> None:
        with suppress(BlockingIOError, OSError):
            while data := os.read(ends.report, 65536):
                for report in self._inboxes[slot.number].take(data):
                    self._fleet.on_message(slot, report, now)

    def look(self, now: float) -> None:
        """Read the boards, as seldom as the stop sequence allows; read idle flags for each wake-up."""
        if self._fleet.pending_wakeups:
            self.look_who_is_idle()
        self._fleet.lease_deadline = self._control.lease_deadline if self._fleet.supervisor else NEVER
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        self._oom.look(now)
        workers = [slot for slot in self._fleet.alive() if slot.kind.works and slot.state is State.READY]
        boards = {slot.number: self.boards[slot.number] for slot in workers}
        self._fleet.saw_times_idle({number: (board.idle, board.times_idle) for number, board in boards.items()}, now)
        for drain in self._drains.values():
            if drain.look(now):
                self._look_at = now + FLOOD
        limit = self._fleet.limits.max_rss
        for slot in self._fleet.alive():
            board = self.boards[slot.number]
            record = board.now()
            rss = procfs.rss(slot.pid) if limit and slot.kind.works else 0
            self._fleet.on_status(
                slot, now_record=record, started=board.jobs_started, rss=rss, now=now, hook=board.hook
            )
            if record is not None and record.runs and now - record.started >= AFTER and slot.stop_sequence is None:
                self.growth.look(slot, board, record, now)
            slot.exclusive = bool(slot.now.job) and board.tally.policy(slot.now.kind).exclusive

    def look_who_is_idle(self) -> None:
        """Read only the idle flags, until enough idle workers are found for the pending wake-ups."""
        found = 0
        for slot in self._fleet.alive():
            if slot.state is State.READY and slot.kind.works:
                board = self.boards[slot.number]
                self._fleet.saw_idle(slot, idle=board.idle, claims=board.claims[0])
                found += slot.idle and slot.stop_sequence is None
                if found >= self._fleet.pending_wakeups:
                    return

    def anyone_idle(self) -> bool:
        """Return whether a worker is idle now, or was since the boards were last read.

        A single read may find all workers busy between two idle periods. Acting on it would switch
        notifications off, and on again at once.
        """
        workers = [slot for slot in self._fleet.alive() if slot.kind.works]
        return any(
            board.idle or board.times_idle != slot.times_idle
            for slot in workers
            for board in (self.boards[slot.number],)
        )

    def look_at(self) -> float:
        """Return when to read the boards next.

        Often while a job runs, seldom while all are idle.
        """
        if any(slot.now.job or slot.stop_sequence for slot in self._fleet.alive()):
            return self._look_at
        return (
            self._look_at + LOOK_IDLE - LOOK
            if any(slot.state is State.READY for slot in self._fleet.alive())
            else NEVER
        )

    def look_now(self) -> None:
        """Read the boards in this turn."""
        self._look_at = 0.0

    # -- act

    def do(self, action: Action, now: float) -> None:
        """Carry out one action of a plan."""
        match action:
            case Fork(slot):
                self._fork(slot, now)
            case WakeChild(slot):
                if (ends := self._ends.get(slot.number)) is not None:
                    nudge(ends.wake)
                    self.offloader.expect_work(now)
            case Offload():
                self.offloader.do(action, now)
            case Dismiss(slot):
                if (ends := self._ends.get(slot.number)) is not None:
                    self.boards[slot.number].dismiss()
                    os.close(ends.wake)
                    self._ends[slot.number] = replace(ends, wake=os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC))
            case Interrupt(slot, what):
                self.boards[slot.number].interrupt(what)
                self._signal(slot, signal.SIGUSR2, group=False)
                log.info(
                    "%s is told to stop job %d: %s",
                    slot.name,
                    what.job,
                    what.reason.name.lower(),
                    extra={"token": what.token},
                )
            case Kill(slot, signum):
                if signum is not signal.SIGKILL and ask_stacks(slot.pid, self.boards[slot.number]):
                    # its post-mortem needs the stacks, which cannot be read after its death
                    self._told_to_say.add(slot.number)
                log.warning("%s gets %s", slot.name, signum.name, extra={"pid": slot.pid, "job": slot.now.job})
                self._signal(slot, signum, group=True)
            case Finish():
                pass  # the loop handles it

    def _fork(self, slot: Slot, now: float) -> None:
        fleet, board = self._fleet, self.boards[slot.number]
        board.clear()
        fleet.incarnations += 1
        slot.code_version = self.settings.code_version or self._revision()
        inherited = spawn.Inherited(
            self._selector, self._signals, self._db, list(self._ends.values()), self.boards, self._fds()
        )
        jitter = random.uniform(-1, 1)
        try:
            pid, ends = spawn.fork_child(
                slot,
                incarnation=fleet.incarnations,
                supervisor=fleet.supervisor,
                control=self._control,
                settings=for_kind(
                    replace(self.settings, queues=(slot.reserved,)) if slot.reserved else self.settings, slot.kind.name
                ),
                inherited=inherited,
                deaths=self._deaths,
            )
        except OSError as problem:
            fleet.fork_failed(slot, now=now, jitter=jitter)
            log.error("the system refuses another process: %s", problem.strerror, extra={"slot": slot.number})
            return
        self._ends[slot.number], self._inboxes[slot.number] = ends, Inbox()
        if ends.output >= 0:
            self._drains[slot.number] = OutputPipe(ends.output, board)
        self._selector.register(ends.report, selectors.EVENT_READ, slot.number)
        fleet.forked(slot, pid=pid, incarnation=fleet.incarnations, now=now, started=board.jobs_started, jitter=jitter)

    def _revision(self) -> str:
        """Return the revision of the code on disk.

        It is read once per reload: a hanging disk must not delay every fork.
        """
        generation, known = self._read
        if generation != self._fleet.generation:
            generation, known = self._read = self._fleet.generation, revision(self.settings.app_dir)
        return known

    def _signal(self, slot: Slot, signum: signal.Signals, *, group: bool) -> None:
        # Its pid cannot be reused until it is reaped, and only this class reaps.
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(slot.pid, signum)  # it may have moved to another group and left processes in this one
        with suppress(ProcessLookupError, PermissionError):
            if not group or os.getpgid(slot.pid) != slot.pid:
                os.kill(slot.pid, signum)


def _next(changes: int) -> os.waitid_result | None:
    """Return a child with one of these state changes; None if there is none."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, changes | os.WNOHANG)
    return None
