"""The maintenance process: tasks that must be done in time, but must not make the supervisor wait.

It makes due jobs ready, enqueues the jobs of due schedules, resumes pauses whose time has come,
releases jobs whose upstream jobs have ended, releases running jobs without an owner, keeps the
partitions of the history, vacuums, deletes old rows, copies the progress of running jobs from the
status boards, and counts finished jobs into the rollup. Its main task is due to the millisecond, so
no task that may take long begins shortly before it. Several maintenance processes on one database
do no harm: each statement skips what another has locked.

When the supervisor is dead, it has a last task. The kernel has notified the workers, which release
what they hold. After 1.5 s this process kills what is left of their process groups: a handler stuck
in C code, and the programs it has started. A maintenance process that dies together with its
supervisor cannot do that. So at its start each one ends what other dead supervisors have left on
this host (`dead_supervisors.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.workers.database.connection import Session
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, Ready, send
from jobherd.workers.maintenance.dead_supervisors import PATIENCE as ORPHANED
from jobherd.workers.maintenance.dead_supervisors import children_of, end, end_groups, find
from jobherd.workers.maintenance.death_hooks import DeathHooks
from jobherd.workers.maintenance.finished_count import FinishedCount
from jobherd.workers.maintenance.key_sweep import KeySweep
from jobherd.workers.maintenance.long_transactions import warn_of_transactions
from jobherd.workers.maintenance.matcher import Matcher
from jobherd.workers.maintenance.old_rows import OldRows
from jobherd.workers.maintenance.partitions import Partitions
from jobherd.workers.maintenance.progress_copy import ProgressCopy
from jobherd.workers.maintenance.promotion import LOCKED, MOST, Promotion
from jobherd.workers.maintenance.resolver import Resolver
from jobherd.workers.maintenance.schedules import Schedules
from jobherd.workers.maintenance.vacuum import VacuumTask

if TYPE_CHECKING:
    from types import FrameType

    from jobherd.workers.database.opening import Row
    from jobherd.workers.process.context import ChildContext

_log = logging.getLogger("jobherd.maintenance")

_AT_FIRST: Final = 5.0
"""Seconds for which partitions are made before this process reports READY. A process that takes too
long to do so is killed, and begins again.
"""
_QUIET: Final = 3.0
"""Partitions are made only if no job is due for this many seconds: attaching one may wait 2 s for
readers.
"""
_OVERDUE: Final = 600.0
_COPY: Final = 1.0
_ENABLE: Final = 2.0
"""Seconds between two tries to enable webhooks. Each may delay settlements by 50 ms."""
_PATIENCE: Final = 30.0
"""Seconds without data from the server after which the session counts as lost. While it waits, no
job becomes due.
"""
_FOR_EVER: Final = float("inf")


def run(context: ChildContext) -> int:
    """Live as a maintenance process and return the exit code.

    Signals must be unblocked, and nothing of the supervisor may be left in this process.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: _dismiss(context, _frame))
    maintenance = Maintenance(context)
    try:
        maintenance.live()
    except StopWaiting as reason:
        _log.info("exiting: %s", reason)
    finally:
        maintenance.close()
    context.spec.board.say(CurrentWork(Phase.LEAVING))
    if context.wake.orphaned or (context.wake.ended and not context.spec.board.dismissed):
        end_groups(children_of(context), marks=context.spec.control.owner + ":")
    return EXIT_REQUESTED


class Maintenance:
    """The tasks of the process, each with the time at which it is due next."""

    def __init__(self, context: ChildContext) -> None:
        self._spec = context.spec
        self._wake = context.wake
        self._title = context.title
        self._session = Session(context.spec, context.wake, patience=_PATIENCE)
        self._sweep_at = 0.0
        self._gates_at = 0.0
        self._copy_at = 0.0
        self._old = OldRows(self._session)
        self._partitions = Partitions(self._session)
        self._finished = FinishedCount(self._session, self._partitions)
        self._promotion = Promotion(self._session, context.spec.settings.poll)
        self._schedules = Schedules(self._session, f"{context.spec.settings.host}/{os.getpid()}")
        self._vacuum = VacuumTask(self._session)
        self._keys = KeySweep(self._session)
        self._resolver = Resolver(self._session)
        self._matcher = Matcher(self._session)
        self._progress = ProgressCopy(self._session, context.spec.boards)
        self._orphaned: set[str] = set()
        """Dead supervisors of which processes were left at the start."""
        self._orphans_at = _FOR_EVER
        self._webhooks_at = _FOR_EVER
        self._deaths = DeathHooks(context.spec, self._find_dead)

    def live(self) -> None:
        """Connect, report READY, and run the tasks until dismissed. Raises StopWaiting."""
        self._session.connect()
        begun = time.monotonic()
        while self._keep_partitions(time.monotonic(), ready=False) and time.monotonic() < begun + _AT_FIRST:
            # Otherwise a dismissal would not be noticed. A wake needs no handling here: every task
            # runs first below.
            self._wake.look()
            if self._wake.dismissed:
                break
        if self._spec.settings.webhooks:
            self._enable_webhooks()
        self._spec.board.say(CurrentWork(Phase.IDLE, self._session.child))
        self._title("runs")
        send(self._spec.report, Ready(self._session.child, self._session.backend))
        with suppress(OSError):  # No file descriptor is free: the next maintenance process may succeed.
            self._orphaned = set(find().values())
        if self._orphaned:
            self._orphans_at = time.monotonic() + ORPHANED
        while not self._wake.dismissed:
            self._do_what_is_due()
            at = min(
                self._promotion.due_at,
                self._schedules.due_at,
                self._gates_at,
                self._sweep_at,
                self._copy_at,
                self._vacuum.due_at,
                self._keys.due_at,
                self._resolver.due_at,
                self._matcher.due_at,
                self._finished.due_at,
                self._orphans_at,
                self._webhooks_at,
                self._deaths.wake_at(time.monotonic()),
                self._old.wake_at,
            )
            if self._wake.wait(at - time.monotonic()):
                # A job was scheduled before all others, a pause or limit changed, or the database
                # is back.
                self._promotion.due_at = self._gates_at = 0.0

    def close(self) -> None:
        """End the session."""
        if not self._wake.orphaned:
            self._deaths.finish()
        self._session.close()

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if now >= self._promotion.due_at:
            self._promotion.promote()
        if now >= self._gates_at:
            self._open_gates()
        if now >= self._schedules.due_at:
            self._schedules.run()
        if now >= self._resolver.due_at:
            self._resolver.step()
        if now >= self._matcher.due_at:
            self._matcher.step()
        self._deaths.step(now)
        if now >= self._copy_at:
            self._progress.write()
            self._copy_at = now + _COPY
        if now >= self._sweep_at:
            self._sweep()
            self._sweep_at = now + self._spec.settings.sweep
        if now >= self._keys.due_at:
            self._keys.step()
        if now >= self._old.due_at:
            self._old.search(now)
            if self._schedules.used or self._schedules.postponed:
                self._schedules.retire()
                self._schedules.pause_failing()
                self._old.add("schedule/delete_ticks")
            warn_of_transactions(self._session, self._spec)
        self._old.step()
        if now >= self._orphans_at:
            self._orphans_at = _FOR_EVER
            with suppress(OSError):
                for pid in end(self._orphaned):
                    _log.warning("killed process %d, which a dead supervisor had left behind", pid)
        if now >= self._webhooks_at:
            self._enable_webhooks()
        if now >= self._vacuum.due_at:
            self._vacuum.run(self._promotion.due_at)
        if now >= self._finished.due_at:
            self._finished.count(self._promotion.due_at)
        quiet = self._promotion.due_at - time.monotonic() > _QUIET
        if now >= self._partitions.due_at and (quiet or now >= self._partitions.due_at + _OVERDUE):
            self._keep_partitions(now)

    def _open_gates(self) -> None:
        """Resume expired pauses, note new limits, and apply late cancel requests.

        Also make those parked jobs ready that no pause or limit holds back any more.
        """
        [(opened, next_in, parked, unseen, asked, due_in, postponed, joins, waits)] = self._session.run(
            "maintenance/end_pauses"
        )
        self._schedules.note(due_in)
        self._resolver.note(joins=joins)
        self._matcher.note(waits=waits)
        self._schedules.postponed = postponed
        if opened:
            _log.info("resumed %d queues or kinds whose pause has ended", opened)
        if unseen:
            self._session.run("maintenance/mark_limits_seen")
        if asked:
            self._session.run("maintenance/apply_cancels", {"most": MOST})
        moved = self._session.count("maintenance/release_parked", {"most": MOST}) if parked else 0
        # While no job is parked and no pause is to end, changes arrive as a wake. The poll is for a
        # wake that was lost.
        pause = (
            0.0
            if moved >= MOST
            else self._spec.settings.sweep
            if parked or asked or next_in is not None
            else self._spec.settings.poll
        )
        self._gates_at = time.monotonic() + (pause if next_in is None else min(pause, max(next_in, LOCKED)))

    def _find_dead(self, job: int) -> Row | None:
        rows = self._session.run("recover/find_dead_job", {"id": job})
        return rows[0] if rows else None

    def _sweep(self) -> None:
        rows = self._session.run("recover/requeue_orphans")
        if rows:
            _log.warning(
                "released %d running jobs whose worker is gone",
                len(rows),
                extra={"jobs": ",".join(str(row[0]) for row in rows[:50])},
            )

    def _enable_webhooks(self) -> None:
        """Create the trigger that calls webhooks, or try again later.

        A caller's open transaction may be in the way, and settlements wait meanwhile.
        """
        self._webhooks_at = _FOR_EVER
        try:
            self._session.run("maintenance/enable_webhooks", stubborn=False)
        except psycopg.Error as problem:
            if not is_retryable(problem):
                raise
            self._webhooks_at = time.monotonic() + _ENABLE
            _log.info("webhooks are not enabled yet, trying again in %g s: %s", _ENABLE, type(problem).__name__)

    def _keep_partitions(self, now: float, *, ready: bool = True) -> bool:
        """Make a few missing partitions, or drop expired ones. Return whether more must be made."""
        more = self._partitions.keep(now, ready=ready)
        if self._partitions.complete:
            self._session.run("maintenance/delete_costs")
            if keep := self._spec.settings.audit_keep:
                self._old.add("maintenance/delete_audit", keep=keep)
        return more


def _dismiss(context: ChildContext, _frame: FrameType | None) -> None:
    context.wake.dismissed = True
    context.wake.poke()
