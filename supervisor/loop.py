"""The supervisor's loop: waits, records what happened, lets `plan` decide, carries the plan out.

It decides nothing, and waits for nothing but the selector. The order within a turn is fixed:
notifications, messages, and only then deaths. A child's last message may arrive in the same batch
as its death, and a reaped child is forgotten.

The loop uses `process/children.py` for processes, `database/` and `crash/recovery.py` for the
database session, and `observe/status_report.py` and `observe/fleet_report.py` to publish the state.
"""

from __future__ import annotations

import logging
import os
import random
import selectors
import signal
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from jobherd import sql
from jobherd.handlers._values.outcome import LABELS
from jobherd.supervisor.crash import orphans
from jobherd.supervisor.crash.deaths import DeathPost
from jobherd.supervisor.crash.recovery import CrashOutcome, CrashRecovery, DeadChild
from jobherd.supervisor.database import identity as lease
from jobherd.supervisor.database.connection import Answer, DatabaseConnection, Link
from jobherd.supervisor.database.fleet_commands import MEANT, FleetCommand, FleetCommands, Refused, objection
from jobherd.supervisor.database.lease import Lease
from jobherd.supervisor.database.notifications import (
    Beat,
    Cancel,
    Command,
    Due,
    Gates,
    Pooler,
    Rejected,
    TableWork,
    Work,
    parse,
)
from jobherd.supervisor.database.notify_mode import NotifyMode
from jobherd.supervisor.database.until_empty import UntilEmpty
from jobherd.supervisor.observe.fleet_report import Facts
from jobherd.supervisor.observe.greeting import greeting
from jobherd.supervisor.observe.log_stream import LogStream
from jobherd.supervisor.observe.loop_lag import LoopLag
from jobherd.supervisor.observe.sampler import Sampler
from jobherd.supervisor.observe.status_report import StatusReport
from jobherd.supervisor.observe.systemd import ServiceManager
from jobherd.supervisor.policy.actions import Finish, Fork
from jobherd.supervisor.policy.fleet import Fleet, RunState
from jobherd.supervisor.policy.kinds import KEEPER, RESETTER
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.plan import nudges, plan
from jobherd.supervisor.process import spawn
from jobherd.supervisor.process.children import Children
from jobherd.supervisor.process.signals import SignalPipe
from jobherd.supervisor.process.watcher import Watcher, places_of
from jobherd.supervisor.settings.child import child_settings
from jobherd.supervisor.settings.readers import show_span
from jobherd.supervisor.version import VERSION
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.run.job_log import failure_words
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.database.notifications import Event
    from jobherd.supervisor.settings.definitions import Settings
    from jobherd.workers.ipc.status_board import CurrentWork

log = logging.getLogger("jobherd.supervisor")


REFUSALS: Final = 60.0
"""Seconds between two log lines about the same rejected statement."""


class Supervisor:
    """The supervisor. One per process; `run` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        *,
        reload: Callable[[], Settings] | None = None,
        signals: SignalPipe | None = None,
        voice: LogStream | None = None,
    ) -> None:
        self.settings = settings
        self._has_page = find_spec("starlette") is not None
        self._reload = reload
        self.me = lease.identity()
        self.fleet = Fleet(Limits.of(settings))
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.signals = signals or SignalPipe()
        self.voice = voice or LogStream()
        self.lateness = LoopLag()
        self.control = ControlBlock()
        sql.load_all()
        self.db = DatabaseConnection(
            settings.listen_dsn or dsn,
            schema=settings.schema,
            application_name=f"jobherd:supervisor:{self.me.pid}",
            retry_initial=settings.db_retry_initial,
            retry_max=settings.db_retry_max,
            listens=settings.listen_dsn is not None,
        )
        self.registration = Lease(
            self.db,
            self.fleet,
            self.control,
            me=self.me,
            lease=settings.lease,
            beaten=self._beaten,
            mourned=lambda: [case.death.incarnation for case in self.recovery.cases],
        )
        self.orders = FleetCommands(self.db, self.fleet, dict.fromkeys(MEANT, self._carry_out))
        self.recovery = CrashRecovery(
            self.db, host=self.me.host, lease=lambda: self.settings.lease, closed=self._recovered
        )
        self.manager = ServiceManager()
        self.deaths = DeathPost()
        self.lookup: spawn.Lookup | None = None
        self.watcher: Watcher | None = None
        self.children = Children(
            self.fleet,
            self.control,
            self.selector,
            self.signals,
            self.db,
            settings=child_settings(settings, dsn=dsn),
            deaths=self.deaths.reading,
            fds=lambda: [
                *self.manager.fds,
                *self.voice.fds,
                *self.deaths.fds,
                *([self.lookup.fd] if self.lookup is not None else []),
                *([self.watcher.fd] if self.watcher is not None else []),
            ],
            bury=self.recovery.take,
        )
        self.sampler = Sampler(self.fleet, self.children.boards, self.orders.answer, host=self.me.host)
        self.children.growth.engaged = self.sampler.asks
        self.hearing = NotifyMode(self.db, self.fleet, self.control, anyone_idle=self.children.anyone_idle)
        self.until_empty = UntilEmpty(
            self.fleet, self.children.boards, self.db, served=lambda: self.settings.served, empty=self._nothing_left
        )
        self.bulletin = StatusReport(
            self.fleet,
            self.control,
            self.children.boards,
            self.db,
            self.registration,
            manager=self.manager,
            me=self.me,
            voice=self.voice,
            lateness=self.lateness,
        )
        self.facts = Facts(
            self.db,
            self.fleet,
            self.registration,
            self.children.boards,
            self.orders,
            queues=lambda: self.settings.served,
            tiers=lambda: (self.settings.queue_order == "turns", self.settings.tiers),
        )
        self.orders.trades |= {
            "report": self.facts.report,
            "stack": self.sampler.stack,
            "profile": self.sampler.profile,
        }
        self._courier_fd = -1
        self._courier_epoch = 0
        self._courier_events = 0
        self._was_up = False
        self._poll_at = 0.0
        self._silent_until: dict[str, float] = {}
        """By statement: until when a rejection of it is not logged again."""
        self._finished: int | None = None
        self._emptied = False
        """The run ends because nothing is left to do."""
        self._greeted = False
        self._reloads: list[tuple[int, str]] = []
        """Reloads by fleet command without an answer yet: the command's id, and the error in the
        settings."""

    # -- the loop

    def run(self) -> int:
        """Serve until asked to stop; return the exit code."""
        orphans.become_subreaper()
        self.signals.raises = False  # earlier signals are in the pipe
        with self.signals.heard():
            self.selector.register(self.signals, selectors.EVENT_READ, "signals")
            log.info("supervisor %s starts", VERSION, extra={"pid": self.me.pid, "workers": self.fleet.wanted})
            if self.settings.reload:
                self._begin_watching()
            while self._finished is None:
                self.turn()
            return self._leave(self._finished)

    def turn(self) -> None:
        """Run one turn of the loop."""
        now = time.monotonic()
        if self._looked_at:
            self.lateness.note(now - self._looked_at)
        self._others_at = self._others_at or self._wake_at(now)
        due = min(self._others_at, self.children.offloader.wake_at(now), self.sampler.at)
        due = max(due, now)
        ready = self.selector.select(due - now)
        now = self._looked_at = time.monotonic()
        if not ready:
            self.lateness.note(max(now - due, 0.0))
        if not ready and now < self._others_at:
            self.control.loop_at = now
            straggler = self.children.offloader.step(now)
            if not self.sampler.step(now) and not straggler:
                return  # several dozen times a second while a worker is busy: nothing else is due or has changed
        self._others_at = 0.0
        self.control.loop_at = now
        if self._wake_for_work(now) and now < due and all(key.data == "courier" for key, _ in ready):
            # Nothing else has come. On a small machine the rest of the turn would take processor
            # time from the job that the worker was woken for.
            return
        self._converse(now)
        told: set[int] = set()
        for key, _ in ready:
            if key.data == "signals":
                told = self.signals.read()
            elif isinstance(key.data, int) and self.children.listen(key.data, now):
                self.bulletin.hurry()
            elif key.data == "watcher":
                self._take_changes(now)
        for signum in sorted(told - {signal.SIGCHLD}):
            self._obey(signum, now)
        if signal.SIGCHLD in told:
            self.children.reap(now)
            # Before the plan and the rest of this turn: until the request is sent, a job of the
            # dead child waits.
            self.recovery.step(now)
            self.db.step(now)
            # if that step has lost the session, a child forked in this turn may get the number of
            # its socket
            self._rewire()
            self.bulletin.hurry()
        if now >= self._plan_at:
            # a time limit has passed and a child may be killed: that needs its current board, not
            # an older copy
            self.children.look_now()
        self._poll(now)  # before the boards are read: idle flags are only read if a wake-up is pending
        self.children.look(now)
        self.children.offloader.step(now)
        self.sampler.step(now)
        self.recovery.step(now)
        self.until_empty.step(now)
        self.orders.step(now)  # before the plan: fleet commands take effect in this turn
        self.facts.step(now)
        todo = plan(self.fleet, now)
        self._plan_at = todo.wake_at
        for action in todo.actions:
            if isinstance(action, Finish):
                self._finished = action.code or self._code_of_failures()
            elif isinstance(action, Fork):
                # If the supervisor dies, the maintenance process ends only the process groups that
                # were published.
                self.bulletin.hurry()
            self.children.do(action, now)
        if self._reloads:
            self._answer_reloads()
        if self.fleet.ever_ready and not self._greeted:
            self._greet()
        self._say_notes()
        self.bulletin.publish(now)
        self._converse(now)

    _plan_at = 0.0
    _looked_at = 0.0
    _others_at = 0.0
    """When the next full turn is due; 0: not calculated since the last one."""

    def _wake_at(self, now: float) -> float:
        if self.fleet.wants_wakeups():
            return now  # requested after this turn's plan: a job would wait until the next event
        # /livez reports a supervisor as dead if its loop stands still for seconds: turn at least
        # once a second.
        return min(
            self._plan_at,
            self.db.wake_at(),
            self.registration.wake_at(),
            self.hearing.wake_at(now),
            self.recovery.wake_at(),
            self.children.look_at(),
            self.bulletin.wake_at(),
            self.until_empty.wake_at(),
            self.orders.wake_at(),
            self.facts.wake_at(),
            self._poll_at,
            now + 1.0,
        )

    # -- record what happened

    def _converse(self, now: float) -> None:
        """Advance the database session, and update what the selector waits for."""
        self._resolve(now)
        self.db.step(now)
        self.registration.step(now)
        self.hearing.step(now)
        self.db.step(now)
        up = self.db.link is Link.UP and not self.db.barred
        trouble = self.db.barred or self.db.trouble
        if up and not self._was_up:
            log.info("the database is there")
            self.fleet.database_up(now)
            self.recovery.hurry()
            self.control.bump()
        elif self._was_up and not up:
            log.warning("the database is away: %s", trouble)
            self.fleet.database_down()
        elif not up and trouble and trouble != self._trouble:
            log.warning("no database: %s", trouble)
        if not up and 0 < self.settings.db_retry_max_attempts < self.db.failures:
            self.fleet.database_given_up(now)
        self._trouble = trouble
        if up is not self._was_up:
            self.bulletin.hurry()
        self._was_up = up
        self._take_notifications()
        self._rewire()

    _trouble = ""
    _dropped = 0
    """Number of dropped log lines that were already reported."""
    _told_of_pooler = False

    def _say_refused(self, name: str, why: str, now: float) -> None:
        """Log that the database rejected a statement, at most once a minute for each statement.

        It may reject several statements many times a second, for hours.
        """
        if now >= self._silent_until.get(name, 0.0):
            self._silent_until[name] = now + REFUSALS
            log.error("the database rejected a statement of the supervisor: %s: %s", name, why)

    def _wake_for_work(self, now: float) -> bool:
        """Wake workers for new notifications before the rest of the turn: a job waits to start.

        Returns:
            Whether nothing else has come from the database.
        """
        alone = self.db.is_quiet
        self.db.step(now)
        alone = self._take_notifications() and alone
        if self.fleet.pending_wakeups:
            self.children.look_who_is_idle()
            for action in nudges(self.fleet):
                self.children.do(action, now)
            # The kernel expects the writer of a pipe to sleep next, and puts the reader on the same
            # processor. Without this yield, the worker waits there until the supervisor's turn
            # ends.
            os.sched_yield()
            return alone
        return False

    def _resolve(self, now: float) -> None:
        hosts = self.db.wants_addresses
        if hosts and self.lookup is None:
            try:
                self.lookup = spawn.Lookup(hosts)
            except OSError as problem:
                self.db.lose(f"the system refuses a process to look up a host name: {problem.strerror}", now)
                return
            self.selector.register(self.lookup.fd, selectors.EVENT_READ, "lookup")
        if self.lookup is not None:
            found = self.lookup.read()
            if found is not None or not hosts:
                self.selector.unregister(self.lookup.fd)
                self.lookup.close()
                self.lookup = None
                if found is not None:
                    self.db.addressed(found, now)

    def _rewire(self) -> None:
        fd, events = self.db.fileno(), self.db.events() if self.db.fileno() >= 0 else 0
        if (fd, self.db.epoch, events) == (self._courier_fd, self._courier_epoch, self._courier_events):
            return
        if self._courier_fd >= 0:
            # The old socket may be closed already. A stale entry would make the selector spin, so
            # unregister it by number.
            with suppress(KeyError, ValueError, OSError):
                self.selector.unregister(self._courier_fd)
        if fd >= 0:
            self.selector.register(fd, events, "courier")
        self._courier_fd, self._courier_epoch, self._courier_events = fd, self.db.epoch, events

    def _take_notifications(self) -> bool:
        """Process the notifications; return whether all of them were about work."""
        only_work = self._was_up
        events, self.db.happened = self.db.happened, []
        for event in events:
            only_work = False
            self._hear_event(event)
        payloads, self.db.notifications = self.db.notifications, []
        self.bulletin.counts["notifications"] += len(payloads)
        calls = 0
        for payload in payloads:
            match parse(payload):
                case Work(queue):
                    calls += queue == "*" or self.settings.serves(queue)
                    continue
                case TableWork():
                    self.fleet.request_wakeups()  # the woken worker finds out which table it is
                    self.control.bump()
                    continue
                case Beat(supervisor):
                    if self.registration.echoed(supervisor):
                        self.bulletin.hurry()  # /readyz needs proof that notifications arrive: publish it at once
                case Due():
                    self.fleet.kinds_to_wake.add(KEEPER)
                case Gates():
                    now = time.monotonic()
                    self.fleet.gates_changed(now)
                    self.children.offloader.hurry(now)
                    self.control.bump()
                case Cancel():
                    self.registration.look_for_cancels()
                    self.fleet.kinds_to_wake.add(KEEPER)  # the job may have returned to the queue by now
                case Command(supervisor):
                    self.orders.heard(supervisor)
            only_work = False
        if calls:
            calls = -(-calls // self.settings.coalesce_notifies)
            self.bulletin.counts["wakes"] += calls
            self.fleet.request_wakeups(calls)
            self.control.bump()
        return only_work

    def _hear_event(self, event: Event) -> None:
        match event:
            case Rejected(statement, why) if statement != "wake/listen_jobs":  # `notify_mode` logs a rejected LISTEN
                self._say_refused(statement, why, time.monotonic())
            case Pooler() if not self._told_of_pooler:
                self._told_of_pooler = True
                if self.db.deaf:
                    log.warning(
                        "a pooler stands between this supervisor and the server: nothing is listened to through it, and jobs wait for the "
                        "poll; give the server's own address in listen_dsn, or this one if it is in session mode"
                    )
                else:
                    log.info(
                        "listening through a pooler, as listen_dsn says: it must be in session mode, or jobs wait for the poll"
                    )

    def _obey(self, signum: int, now: float) -> None:
        if signum == signal.SIGUSR1:
            for line in self.bulletin.describe(now):
                log.info("%s", line)
            return
        log.info("got %s", signal.Signals(signum).name)
        self._told(signum, now)

    def _told(self, signum: int, now: float) -> str:
        """Act on a signal, or on a fleet command that stands for one; return an error text, or ""."""
        before, problem = self.fleet.run_state, ""
        if signum == signal.SIGHUP:
            self.bulletin.reload_begins()
            problem = self._read_settings()
        self.fleet.on_signal(signum, now)
        if self.fleet.run_state is not before:
            self._begin_course()
        return problem

    def _carry_out(self, order: FleetCommand, now: float) -> dict[str, object] | None:
        """Carry out a fleet command that does the same as a signal.

        A reload is answered later, once it is known whether the new code loads.
        """
        fleet = self.fleet
        if why := objection(order.name, fleet):
            raise Refused(why)
        problem = ""
        if (
            order.name != "drain" or fleet.run_state is RunState.SERVING
        ):  # a second SIGTERM releases running jobs; a second drain command does not
            problem = self._told(MEANT[order.name], now)
        if order.name == "reload":
            self._reloads.append((order.id, problem))
            return None
        return self._count_workers()

    def _count_workers(self) -> dict[str, object]:
        self.children.look_now()
        self.children.look(time.monotonic())
        return {"workers": self.fleet.wanted, "running": sum(1 for slot in self.fleet.alive() if slot.now.job)}

    def _answer_reloads(self) -> None:
        """Answer the requested reloads, once it is known whether the new code loads."""
        answer = self.fleet.reload_answer
        if answer is None and (self.fleet.run_state is not RunState.SERVING or self.fleet.exit_code is not None):
            answer = "it is leaving already: nothing is reloaded any more"
        if answer is None:
            return
        for number, problem in self._reloads:
            if error := "; ".join(each for each in (problem, answer) if each):
                self.orders.answer(number, error=error)
            else:
                self.orders.answer(number, self._count_workers())
        self._reloads.clear()

    def _beaten(self, ordered: bool) -> None:  # noqa: FBT001 - the only fact about the renewal
        """The lease was renewed."""
        if ordered:
            self.orders.look()
        self.facts.beaten(time.monotonic())

    def _begin_course(self) -> None:
        self.control.draining = True
        reach("parent:draining")
        self.bulletin.hurry()
        self.manager.tell("STOPPING=1")
        self.children.look_now()
        self.children.look(time.monotonic())
        running = sum(1 for slot in self.fleet.alive() if slot.now.job)
        wait = f"; waits up to {show_span(self.settings.drain_timeout)} for them, a second Ctrl-C or SIGTERM returns them to their queues"
        words = {
            RunState.DRAINING: "draining: nothing more is claimed, %d running" + (wait if running else ""),
            RunState.FAST_SHUTDOWN: "exiting now: %d running jobs are released",
            RunState.IMMEDIATE_SHUTDOWN: "exiting at once: %d running jobs are killed",
        }
        log.info(words[self.fleet.run_state], running)

    def _begin_watching(self) -> None:
        try:
            self.watcher = Watcher(places_of(self.settings))
        except OSError as problem:
            log.error("--reload does not work, the watcher process cannot be started: %s", problem.strerror)
            return
        self.selector.register(self.watcher.fd, selectors.EVENT_READ, "watcher")

    def _end_watching(self) -> None:
        if self.watcher is not None:
            self.selector.unregister(self.watcher.fd)
            self.watcher.close()
            self.watcher = None

    def _take_changes(self, now: float) -> None:
        """Reload because files have changed."""
        changed = None if self.watcher is None else self.watcher.read()
        if changed is None:
            log.warning("the process that watches files has ended: --reload no longer works, SIGHUP does")
            self._end_watching()
        elif changed and self.fleet.run_state is RunState.SERVING:
            log.info("reloading, since files changed: %s", ", ".join(changed))
            self._told(signal.SIGHUP, now)

    def _read_settings(self) -> str:
        if self._reload is None:
            return ""
        try:
            self.settings = self._reload()
        except Exception as problem:
            log.error("the settings do not load, the old ones stay: %s", problem)
            return f"the settings do not load, the old ones stay: {problem}"
        for name in self.settings.given.waiting:
            log.warning("%s was changed: restart the supervisor to apply it", name)
        self.children.settings = child_settings(self.settings, dsn=self.children.settings.dsn)
        self.fleet.limits = Limits.of(self.settings)
        self.fleet.wanted = self.settings.workers
        # a child with a longer lease than the supervisor's would never claim
        self.registration.change_lease(self.settings.lease)
        return ""

    def _recovered(self, case: DeadChild, verdict: CrashOutcome | None, released: list[int]) -> None:
        """The jobs of a dead child are settled and released."""
        self.fleet.on_recovered(time.monotonic())
        self.bulletin.count_buried(case, verdict, len(released))
        for record, became in case.verdicts:
            if record.job in case.settled:
                self._log_job(case, record, became)
                if self.fleet.mourns and self.deaths.tell(case, record, became):
                    self.fleet.kinds_to_wake.add(KEEPER)
        if case.policy.table:
            # The record's outcome is stored; the resetter writes it into the application's table.
            self.fleet.kinds_to_wake.add(RESETTER)
        if released:
            log.info("%d claimed jobs were released", len(released), extra={"jobs": released[:20]})
            self.fleet.request_wakeups(len(released))
            self.control.bump()

    def _log_job(self, case: DeadChild, record: CurrentWork, verdict: CrashOutcome) -> None:
        """Log the outcome of a job that ended with its process.

        The log line about the process has the reason.
        """
        ids: dict[str, object] = {"record" if case.policy.table else "job": record.job, "kind": case.policy.name}
        ids |= {"attempt": record.attempts, "max_attempts": record.max_attempts, "pid": case.death.pid}
        ended = LABELS[verdict.outcome]
        if not ended.failed:
            log.info(ended.words, extra=ids)
        elif self.settings.log_jobs != "none":
            level = logging.WARNING if verdict.outcome == "retry" else logging.ERROR
            log.log(level, "%s", failure_words(verdict.outcome, verdict.delay, verdict.code or ""), extra=ids)

    def _poll(self, now: float) -> None:
        """Wake one worker every `poll` seconds, in case a notification was lost.

        This fallback must cost the same for one worker and for 64.
        """
        if now >= self._poll_at:
            self._poll_at = now + self.settings.poll * random.uniform(0.9, 1.1)
            self.fleet.request_wakeups()

    def _code_of_failures(self) -> int:
        """Return the exit code of a run that had nothing left to do: 1 if failed jobs count."""
        failed = self.bulletin.count_failed() if self._emptied and not self.settings.ignore_failures else 0
        if failed:
            log.error(
                "%d %s failed, so the exit code is 1; --ignore-failures makes it 0",
                failed,
                "job" if failed == 1 else "jobs",
            )
        return 1 if failed else 0

    def _nothing_left(self, now: float) -> None:
        log.info("nothing is left to do")
        self._emptied = True
        self.fleet.enter_state(RunState.DRAINING, now)
        self._begin_course()

    # -- report

    def _greet(self) -> None:
        """Log what a new user needs to know, once the first worker is READY."""
        self._greeted = True
        for line in greeting(self.settings, self.children.boards, page=self._has_page):
            log.info("%s", line)

    def _say_notes(self) -> None:
        fleet, voice = self.fleet, self.voice
        voice.flush()
        if voice.dropped > self._dropped and not voice.waits:
            log.warning("%d log lines were dropped because standard error was not read", voice.dropped - self._dropped)
            self._dropped = voice.dropped
        notes, warnings, fleet.notes, fleet.warnings = fleet.notes, fleet.warnings, [], []
        for note in notes:
            log.info("%s", note)
        for warning in warnings:
            log.warning("%s", warning)

    def _leave(self, code: int) -> int:
        """Unregister from the database, if that takes at most 2 seconds, and return the exit code."""
        reach("parent:leaving")
        self._end_watching()
        gone: list[Answer] = []
        until = time.monotonic() + 2.0
        # After a stop during registration the server still registers this supervisor. Such a
        # registration, left behind, would last until its lease expires.
        self._hear(lambda: not self.registration.underway, until)
        if self.fleet.supervisor and self.db.link is Link.UP:
            self.db.ask("recover/unregister_supervisor", {"supervisor": self.fleet.supervisor}, gone.append)
            self._hear(lambda: bool(gone), until)
        self.db.close()
        self.deaths.close()
        self.selector.close()
        log.info("supervisor exits", extra={"exit_code": code})
        return code

    def _hear(self, heard: Callable[[], bool], until: float) -> None:
        """Exchange data with the database until `heard` returns true, but no longer than `until`."""
        while not heard() and time.monotonic() < until and self.db.link is Link.UP:
            self.db.step(time.monotonic())
            self._rewire()
            self.selector.select(0.05)


class RefusedError(Exception):
    """The kernel refuses a resource that the supervisor needs. The text is shown to users."""


def run(
    settings: Settings,
    dsn: str,
    *,
    reload: Callable[[], Settings] | None = None,
    signals: SignalPipe | None = None,
    voice: LogStream | None = None,
) -> int:
    """Run a supervisor in this process until it is asked to stop.

    Args:
        settings: the settings.
        dsn: the database.
        reload: reads the settings again, on SIGHUP.
        signals: a signal pipe that already receives the signals.
        voice: the stream that the log is written to.

    Returns:
        The exit code.

    Raises:
        RefusedError: the kernel refuses resources that the start needs.
    """
    try:
        supervisor = Supervisor(settings, dsn, reload=reload, signals=signals, voice=voice)
    except OSError as problem:
        if not os.path.exists("/proc/self"):
            message = (
                "/proc is not mounted, and a supervisor reads its processes there: mount it (mount -t proc proc /proc)"
            )
            raise RefusedError(message) from None
        message = (
            f"the system refuses what a supervisor with room for {settings.max_workers} workers needs: {problem.strerror}; raise what limits its open files "
            "(ulimit -n, LimitNOFILE=), their size (ulimit -f, LimitFSIZE=) or its memory, or lower max_workers"
        )
        raise RefusedError(message) from None
    spawn.settle_heap()
    try:
        return supervisor.run()
    finally:
        if signals is None:
            supervisor.signals.close()
