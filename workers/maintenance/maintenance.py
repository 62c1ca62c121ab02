"""The maintenance process: tasks that must be done in time, but must not make the supervisor wait.

It makes due jobs ready, resumes pauses whose time has come, releases running jobs without an owner,
keeps the partitions of the history, vacuums, deletes old fleet commands and audit entries, copies
the progress of running jobs from the status boards, and counts finished jobs into the rollup. Its
main task is due to the millisecond, so no task that may take long begins shortly before it. Several
maintenance processes on one database do no harm: each statement skips what another has locked.

When the supervisor is dead, it has a last task. The kernel has notified the workers, which release
what they hold. After 1.5 s this process kills what is left of their process groups: a handler stuck
in C code, and the programs it has started. A maintenance process that dies together with its
supervisor cannot do that. So at its start each one ends what other dead supervisors have left on
this host (`dead_supervisors.py`).
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import orjson
import psycopg

from jobherd.workers.database.connection import Session
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.database.waiting import Left
from jobherd.workers.ipc.pipes import EXIT_LEFT, Ready, send
from jobherd.workers.ipc.status_board import CurrentWork, Phase
from jobherd.workers.maintenance.dead_supervisors import PATIENCE as ORPHANED
from jobherd.workers.maintenance.dead_supervisors import end, end_groups, find
from jobherd.workers.maintenance.deaths import Deaths
from jobherd.workers.maintenance.rollup import COARSEN, KEEP_DAYS, LAG, STEPS, Looks
from jobherd.workers.maintenance.vacuum import DEAD, VACUUMS, Vacuum

if TYPE_CHECKING:
    from types import FrameType

    from jobherd.workers.database.opening import Row
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.context import ChildContext

_log = logging.getLogger("jobherd.maintenance")

MOST: Final = 1000
"""Due jobs moved by one statement: more would hold their locks for long."""
_MOVING: Final = 0.05
"""Another maintenance process has locked a due job that could not be moved. Look again after this
many seconds.
"""
_HOUR: Final = 3600.0
_AT_FIRST: Final = 5.0
"""Seconds for which partitions are made before this process reports READY. A process that takes too
long to do so is killed, and begins again.
"""
_QUIET: Final = 3.0
"""Partitions are made only if no job is due for this many seconds: attaching one may wait 2 s for
readers.
"""
_OVERDUE: Final = 600.0
_AGAIN: Final = 300.0
_SOON: Final = 60.0
"""Seconds until partitions are tried again: _AGAIN after a wait of 2 s, and _SOON after one of 50
ms. `keep_partitions` waits for only 50 ms while only the last day's partition is missing.
"""
_FEW: Final = 2
"""Partitions made in one transaction: no worker can settle for the 15 ms that each takes."""
_LONG: Final = 1.0
_EASE: Final = 10.0
"""Seconds that _FEW partitions may take. If they take longer, as in the first days after a version
that left all rows in the default partition, the next ones wait ten times as long. Otherwise no
worker could settle until all were made.
"""
AHEAD: Final = 32
"""Days for which partitions always exist: 30 for what is kept that long, and two for times without
a maintenance process.
"""
FARTHEST: Final = 400
"""Maximum days with partitions, if many jobs are kept for longer. A search for a job queries each
partition.
"""
CROWDED: Final = 64 << 20
"""Bytes in the default partition from which on there are that many. A day's rows are searched in
all of it, and no worker settles meanwhile.
"""
_COPY: Final = 1.0
_GLANCE: Final = 2.0
"""Seconds between two counts of dead rows, while rows die."""
_SELDOM: Final = 10.0
"""Seconds between two such counts when almost none die. An idle fleet then sends the database less
than three statements a second.
"""
_FORGET: Final = 30.0
_ENABLE: Final = 2.0
"""Seconds between two tries to enable webhooks. Each may delay settlements by 50 ms."""
_UNCOUNTED: Final = 60.0
"""Finished jobs are counted when no job is due soon, or after this many seconds in any case."""
_PATIENCE: Final = 30.0
"""Seconds without data from the server after which the session counts as lost. While it waits, no
job becomes due.
"""
_SLOW: Final = 600.0
_SLOWEST: Final = 3600.0
"""Seconds without data for statements that read a long history, and for a vacuum. Given up too
early, they would be started again and again.
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
    except Left as reason:
        _log.info("exiting: %s", reason)
    finally:
        maintenance.close()
    context.spec.board.say(CurrentWork(Phase.LEAVING))
    if context.wake.orphaned or (context.wake.ended and not context.spec.board.dismissed):
        end_groups(_children_of(context), marks=context.spec.control.owner + ":")
    return EXIT_LEFT


class Maintenance:
    """The tasks of the process, each with the time at which it is due next."""

    def __init__(self, context: ChildContext) -> None:
        self._spec = context.spec
        self._wake = context.wake
        self._title = context.title
        self._session = Session(context.spec, context.wake, patience=_PATIENCE)
        self._due_at = 0.0
        self._sweep_at = 0.0
        self._gates_at = 0.0
        self._partitions_at = 0.0
        self._copy_at = 0.0
        self._forget_at = 0.0
        self._glance_at = 0.0
        self._old: dict[str, dict[str, float]] = {}
        """Statements that delete old rows, until no more are left."""
        self._parted = False
        self._made = 0
        """Partitions made since their number was last logged."""
        self._count_at = 0.0
        self._counted = 0.0
        self._coarsen_at = 0.0
        self._clearing = Vacuum()
        self._looks = Looks()
        self._told: dict[int, tuple[int, int, bytes]] = {}
        self._orphaned: set[str] = set()
        """Dead supervisors of which processes were left at the start."""
        self._orphans_at = _FOR_EVER
        self._webhooks_at = _FOR_EVER
        self._deaths = Deaths(context.spec, self._find_dead)

    def live(self) -> None:
        """Connect, report READY, and run the tasks until dismissed. Raises Left."""
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
                self._due_at,
                self._gates_at,
                self._sweep_at,
                self._copy_at,
                self._forget_at,
                self._glance_at,
                self._count_at,
                self._orphans_at,
                self._webhooks_at,
                self._deaths.wake_at(time.monotonic()),
                0.0 if self._old else _FOR_EVER,
            )
            if self._wake.wait(at - time.monotonic()):
                # A job was scheduled before all others, a pause or limit changed, or the database
                # is back.
                self._due_at = self._gates_at = 0.0

    def close(self) -> None:
        """End the session."""
        if not self._wake.orphaned:
            self._deaths.finish()
        self._session.close()

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if now >= self._due_at:
            self._promote()
        if now >= self._gates_at:
            self._open_gates()
        self._deaths.step(now)
        if now >= self._copy_at:
            self._copy_progress()
            self._copy_at = now + _COPY
        if now >= self._sweep_at:
            self._sweep()
            self._sweep_at = now + self._spec.settings.sweep
        if now >= self._forget_at:
            self._session.run("maintenance/delete_progress")
            self._session.run("maintenance/delete_claim_locks")
            self._old |= {
                "maintenance/delete_logs": {"most": MOST},
                "maintenance/delete_fleet_commands": {"most": MOST},
            }
            self._warn_of_transactions()
            self._forget_at = now + _FORGET
        if self._old:
            self._drop_old()
        if now >= self._orphans_at:
            self._orphans_at = _FOR_EVER
            with suppress(OSError):
                for pid in end(self._orphaned):
                    _log.warning("killed process %d, which a dead supervisor had left behind", pid)
        if now >= self._webhooks_at:
            self._enable_webhooks()
        if now >= self._glance_at:
            self._clear_away()
        if now >= self._count_at:
            self._count_past()
        quiet = self._due_at - time.monotonic() > _QUIET
        if now >= self._partitions_at and (quiet or now >= self._partitions_at + _OVERDUE):
            self._keep_partitions(now)

    def _promote(self) -> None:
        while True:
            asked = time.monotonic()
            if self._session.count("maintenance/promote_due", {"most": MOST}) >= MOST:
                continue
            rows = self._session.run("maintenance/find_next_due")
            now = time.monotonic()
            backstop = self._spec.settings.poll * random.uniform(0.9, 1.1)
            due_in = rows[0][0] if rows else backstop
            # A job that became due between the two statements was not locked by any session:
            # waiting would delay it.
            if due_in > 0 or -due_in >= now - asked:
                break
        self._due_at = now + min(backstop, due_in if due_in > 0 else _MOVING)

    def _open_gates(self) -> None:
        """Resume expired pauses, note new limits, and apply late cancel requests.

        Also make those parked jobs ready that no pause or limit holds back any more.
        """
        [(opened, next_in, parked, unseen, asked)] = self._session.run("maintenance/end_pauses")
        if opened:
            _log.info("resumed %d gates that were paused until now", opened)
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
        self._gates_at = time.monotonic() + (pause if next_in is None else min(pause, max(next_in, _MOVING)))

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

    def _warn_of_transactions(self) -> None:
        wanted = {"supervisor": self._spec.supervisor, "seconds": self._spec.settings.long_transaction}
        for job, kind, seconds in self._session.run("maintenance/find_long_transactions", wanted):
            _log.warning(
                "the transaction of %s #%d has been open for %.0f s: nothing that is updated or deleted meanwhile can be vacuumed, in the whole "
                "database; do the slow part before it, and in `with job.transaction():` only what belongs together",
                kind, job, seconds, extra={"job": job},
            )  # fmt: skip

    def _keep_partitions(self, now: float, *, ready: bool = True) -> bool:
        """Make a few missing partitions, or drop expired ones. Return whether more must be made.

        ready: whether READY was reported. Before that, a default partition that takes long to
        search is left alone.
        """
        self._parted = False
        begun = time.monotonic()
        try:
            wanted = {"least": AHEAD, "most": FARTHEST, "crowded": CROWDED}
            [(ahead, crowded, locks)] = self._session.run("maintenance/count_days_ahead", wanted)
            # Another maintenance process does this, perhaps for minutes. The next statement would
            # wait for it, and due jobs would wait here.
            if crowded is None:
                self._partitions_at = now + _AGAIN
                return False
            if crowded and not ready:
                return False
            with self._session.with_patience(_SLOW):
                [(made, dropped)] = self._session.run(
                    "maintenance/keep_partitions", {"ahead": ahead, "most": _FEW}, stubborn=False
                )
        except psycopg.Error as problem:
            if not is_retryable(problem):
                raise
            # A long read of the history. Rows that go to the default partition until then are moved
            # later, and nothing is lost.
            in_hand = time.monotonic() - begun < _LONG
            again = _SOON if in_hand else _AGAIN
            self._partitions_at = now + again
            level = logging.INFO if in_hand else logging.WARNING
            _log.log(level, "partitions are not kept yet, trying again in %g s: %s", again, type(problem).__name__)
            return False
        self._made += made
        if made >= _FEW:
            if (took := time.monotonic() - begun) > _LONG:
                self._partitions_at = begun + took + _EASE * took
            return True
        self._partitions_at = now + _HOUR
        self._parted = True
        self._session.run("maintenance/delete_costs")
        if keep := self._spec.settings.audit_keep:
            self._old["maintenance/delete_audit"] = {"most": MOST, "keep": keep}
        if self._made or dropped:
            _log.info("made %d partitions, dropped %d", self._made, dropped)
            self._made = 0
        if locks is not None:
            _log.warning(
                "finished jobs are kept longer than the %d days that have partitions: adding a day's partition scans the whole default partition, "
                "and no worker can record outcomes meanwhile; set the server's max_locks_per_transaction to %d, or keep finished jobs for less time",
                ahead, locks,
            )  # fmt: skip
        return False

    def _count_past(self) -> None:
        """Count what has finished since the last count, unless a due job would have to wait for it."""
        looks, begun = self._looks, time.monotonic()
        if not self._parted:
            # A row that moves to its partition looks new, and would be counted twice.
            self._count_at = max(self._partitions_at, begun + _QUIET)
            return
        if (
            looks.took > _MOVING
            and begun + 2 * looks.took > self._due_at
            and begun < self._counted + looks.pause + _UNCOUNTED
        ):
            self._count_at = max(begun, self._due_at) + _MOVING
            return
        with self._session.with_patience(max(20 * looks.took, _PATIENCE) if self._counted else _SLOW):
            [(_, behind)] = self._session.run("maintenance/update_rollup", {"span": looks.span, "lag": LAG})
        self._counted = time.monotonic()
        looks.done(took=self._counted - begun, behind=behind)
        self._count_at = self._counted + looks.pause
        if self._counted >= self._coarsen_at:
            self._coarsen_at = self._counted + COARSEN
            for step, coarser, older in STEPS:
                self._session.run("maintenance/coarsen_rollup", {"step": step, "coarser": coarser, "older": older})
            self._session.run("maintenance/delete_rollup", {"days": KEEP_DAYS})

    def _drop_old(self) -> None:
        """Delete a limited number of old rows.

        The logs of a day fall due at once, millions of rows, and jobs become due meanwhile.
        """
        statement, wanted = next(iter(self._old.items()))
        if self._session.count(statement, wanted) < MOST:
            del self._old[statement]

    def _clear_away(self) -> None:
        """Vacuum the busy tables if that pays and no due job has to wait for it."""
        rows = self._session.run("maintenance/count_dead_rows")
        for table, dead, live in rows:
            begun = time.monotonic()
            if (
                self._clearing.pays(table, dead=dead, live=live, now=begun)
                and begun + 2 * self._clearing.took < self._due_at
            ):
                with self._session.with_patience(_SLOWEST):
                    # Whether it succeeds or not, the rest is left for a later vacuum.
                    self._session.run_alone(VACUUMS[table])
                left = {name: dead for name, dead, _ in self._session.run("maintenance/count_dead_rows")}
                self._clearing.done(table, left=left[table], begun=begun, ended=time.monotonic())
        busy = any(dead > DEAD / 10 for _, dead, _ in rows)
        self._glance_at = time.monotonic() + (_GLANCE if busy else _SELDOM)

    def _copy_progress(self) -> None:
        jobs: list[int] = []
        tokens: list[int] = []
        progresses: list[str] = []
        for number, board in enumerate(self._spec.boards):
            told = _progress_on(board)
            if told is None or self._told.get(number) == told:
                continue
            self._told[number] = told
            jobs.append(told[0])
            tokens.append(told[1])
            progresses.append(told[2].decode())
        if jobs:
            self._session.run("maintenance/write_progress", {"jobs": jobs, "tokens": tokens, "progresses": progresses})


def _progress_on(board: StatusBoard) -> tuple[int, int, bytes] | None:
    """Return job, token and progress of the job on a status board.

    None if no job runs, or if it changed during the read.
    """
    before = board.now()
    if before is None or before.phase is not Phase.RUNNING or not before.job or board.tally.policy(before.kind).table:
        return None  # A record's number may also be a job's, which would then show this progress.
    text = board.progress()
    after = board.now()
    if not text or after is None or (after.job, after.token) != (before.job, before.token):
        return None
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # One invalid document would keep all others out of the database.
    return before.job, before.token, text


def _dismiss(context: ChildContext, _frame: FrameType | None) -> None:
    context.wake.dismissed = True
    context.wake.poke()


def _children_of(context: ChildContext) -> set[int]:
    """Return the pids of all other child processes, as the supervisor last published them.

    Each leads a process group of its own number.
    """
    children = context.spec.control.facts().get("children")
    found = [child.get("pid") for child in children if isinstance(child, dict)] if isinstance(children, list) else []
    return {pid for pid in found if isinstance(pid, int) and pid > 1} - {os.getpid()}
