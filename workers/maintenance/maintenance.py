"""The keeper: what must be done in time, but not by the parent, who must never wait for the database.

It makes due jobs ready, opens gates whose time has come, gives back running jobs that nobody holds, keeps the partitions of the past,
clears dead rows away, forgets old orders and notes of the audit, copies what running jobs say of their progress from the boards, and counts
what has ended into the rollup. Its main work has a time to the millisecond, so
nothing that may take long is begun shortly before it.
Several keepers on one database do no harm: each statement skips what another has locked.

When the parent is dead it has a last duty. The workers have been told by the kernel and hand back what they hold; what is left of their
process groups after 1.5 s is killed: a handler stuck in C code, and what it has started. Who dies together with the parent cannot do it; so it
has a first duty too: what other supervisors have left behind on this machine (`orphans.py`).
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

from jobherd.workers.database.connection import Left, Session, is_away
from jobherd.workers.ipc.pipes import EXIT_LEFT, Ready, send
from jobherd.workers.ipc.status_board import CurrentWork, Phase
from jobherd.workers.maintenance.dead_supervisors import PATIENCE as ORPHANED
from jobherd.workers.maintenance.dead_supervisors import end, end_groups, find
from jobherd.workers.maintenance.deaths import Deaths
from jobherd.workers.maintenance.rollup import COARSEN, KEEP_DAYS, LAG, STEPS, Looks
from jobherd.workers.maintenance.vacuum import DEAD, VACUUMS, Vacuum

if TYPE_CHECKING:
    from types import FrameType

    from jobherd.workers.database.connection import Row
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.context import ChildContext

_log = logging.getLogger("jobherd.keeper")

MOST: Final = 1000
"""Due jobs moved by one statement: more would hold their locks for long."""
_MOVING: Final = 0.05
"""A due job that could not be moved is in another keeper's hands; look again after so many seconds."""
_HOUR: Final = 3600.0
_AT_FIRST: Final = 5.0
"""Seconds that partitions are made for before the keeper says that it is ready: one that takes too long to do so is ended, and begins anew."""
_QUIET: Final = 3.0
"""Partitions wait for so many seconds without a due job: attaching one may wait 2 s for readers."""
_OVERDUE: Final = 600.0
_AGAIN: Final = 300.0
_SOON: Final = 60.0
"""Seconds until partitions are tried again: after a wait of 2 s, and after one of 50 ms, which `keep_partitions` makes while a day is in hand."""
_FEW: Final = 2
"""Partitions made in one transaction: for the 15 ms that each takes nobody settles."""
_LONG: Final = 1.0
_EASE: Final = 10.0
"""Seconds that a few may take; if they take longer, as in the first days after a version that left all in the default partition, the next ones come after ten times
as many: else nobody would settle until all were made."""
AHEAD: Final = 32
"""Days of which there is a partition always: for what is kept for 30, and two for keepers who are away."""
FARTHEST: Final = 400
"""Days of which there are at the most, where jobs are kept for longer and are many: who looks a job up asks each of them."""
CROWDED: Final = 64 << 20
"""Bytes in the default partition from which on there are so many. A day's rows are looked for in all of it, and nobody settles meanwhile."""
_COPY: Final = 1.0
_GLANCE: Final = 2.0
"""Seconds between two looks at what has died, while something dies."""
_SELDOM: Final = 10.0
"""Seconds between two such looks when next to nothing does: an idle fleet asks the database for less than three statements a second."""
_FORGET: Final = 30.0
_ENABLE: Final = 2.0
"""Seconds between two tries to enable webhooks. Each may hold up settlements for 50 ms."""
_UNCOUNTED: Final = 60.0
"""What has ended is counted when no job is due soon, or after so many seconds all the same."""
_PATIENCE: Final = 30.0
"""Seconds without a word from the server after which its session is taken for lost: while it waits, nothing becomes due."""
_SLOW: Final = 600.0
_SLOWEST: Final = 3600.0
"""Seconds for what reads a long past, and for a vacuum: given up too early it would be begun again and again."""
_FOR_EVER: Final = float("inf")


def run(context: ChildContext) -> int:
    """Live as a keeper and return the exit code. Signals are unblocked, nothing of the parent's is left."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: _dismiss(context, _frame))
    keeper = Maintenance(context)
    try:
        keeper.live()
    except Left as reason:
        _log.info("leaving: %s", reason)
    finally:
        keeper.close()
    context.spec.board.say(CurrentWork(Phase.LEAVING))
    if context.wake.orphaned or (context.wake.ended and not context.spec.board.dismissed):
        end_groups(_children_of(context), marks=context.spec.control.owner + ":")
    return EXIT_LEFT


class Maintenance:
    """Several duties, each with the time at which it is due next."""

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
        """What deletes what is old, as long as there is more of it."""
        self._parted = False
        self._made = 0
        """Partitions since it was last said how many."""
        self._count_at = 0.0
        self._counted = 0.0
        self._coarsen_at = 0.0
        self._clearing = Vacuum()
        self._looks = Looks()
        self._told: dict[int, tuple[int, int, bytes]] = {}
        self._orphaned: set[str] = set()
        """Dead supervisors that had left something behind when we began."""
        self._orphans_at = _FOR_EVER
        self._webhooks_at = _FOR_EVER
        self._deaths = Deaths(context.spec, self._find_dead)

    def live(self) -> None:
        """Connect, say READY, and keep house until dismissed. Raises Left."""
        self._session.connect()
        begun = time.monotonic()
        while self._keep_partitions(time.monotonic(), ready=False) and time.monotonic() < begun + _AT_FIRST:
            self._wake.look()  # or a dismissal would not be heard; of what a nudge is about, all is looked at first below
            if self._wake.dismissed:
                break
        if self._spec.settings.webhooks:
            self._enable_webhooks()
        self._spec.board.say(CurrentWork(Phase.IDLE, self._session.child))
        self._title("keeps house")
        send(self._spec.report, Ready(self._session.child, self._session.backend))
        with suppress(OSError):  # there is no file to be had: the next keeper may find it
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
                self._due_at = self._gates_at = 0.0  # something was scheduled before all others, a gate changed, or the database is back

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
            self._session.run("drop_progress")
            self._session.run("drop_claim_locks")
            self._old |= {"drop_logs": {"most": MOST}, "drop_orders": {"most": MOST}}
            self._warn_of_transactions()
            self._forget_at = now + _FORGET
        if self._old:
            self._drop_old()
        if now >= self._orphans_at:
            self._orphans_at = _FOR_EVER
            with suppress(OSError):
                for pid in end(self._orphaned):
                    _log.warning("ended process %d, which a supervisor that is dead had left behind", pid)
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
            if self._session.count("promote_due", {"most": MOST}) >= MOST:
                continue
            rows = self._session.run("next_due")
            now = time.monotonic()
            backstop = self._spec.settings.poll * random.uniform(0.9, 1.1)
            due_in = rows[0][0] if rows else backstop
            # A job whose time came between the two statements was not refused by anybody: waiting for it would make it late.
            if due_in > 0 or -due_in >= now - asked:
                break
        self._due_at = now + min(backstop, due_in if due_in > 0 else _MOVING)

    def _open_gates(self) -> None:
        """Resume what was paused until now, note new caps, apply late requests to cancel, and make ready what no gate holds back any more."""
        [(opened, next_in, parked, unseen, asked)] = self._session.run("open_gates")
        if opened:
            _log.info("resumed %d gates that were paused until now", opened)
        if unseen:
            self._session.run("note_caps")
        if asked:
            self._session.run("apply_cancels", {"most": MOST})
        moved = self._session.count("release_parked", {"most": MOST}) if parked else 0
        # While nothing is parked and nothing is to be resumed, news comes as a call: the poll is for a call that was lost.
        pause = 0.0 if moved >= MOST else self._spec.settings.sweep if parked or asked or next_in is not None else self._spec.settings.poll
        self._gates_at = time.monotonic() + (pause if next_in is None else min(pause, max(next_in, _MOVING)))

    def _find_dead(self, job: int) -> Row | None:
        rows = self._session.run("find_dead_job", {"id": job})
        return rows[0] if rows else None

    def _sweep(self) -> None:
        rows = self._session.run("release_orphans")
        if rows:
            _log.warning(
                "gave back %d running jobs that nobody held", len(rows), extra={"jobs": ",".join(str(row[0]) for row in rows[:50])}
            )

    def _enable_webhooks(self) -> None:
        """Create the trigger that calls webhooks, or try again later: a caller's open transaction may be in the way, and settlements wait meanwhile."""
        self._webhooks_at = _FOR_EVER
        try:
            self._session.run("enable_webhooks", stubborn=False)
        except psycopg.Error as problem:
            if not is_away(problem):
                raise
            self._webhooks_at = time.monotonic() + _ENABLE
            _log.info("webhooks are not enabled yet, trying again in %g s: %s", _ENABLE, type(problem).__name__)

    def _warn_of_transactions(self) -> None:
        wanted = {"supervisor": self._spec.supervisor, "seconds": self._spec.settings.long_transaction}
        for job, kind, seconds in self._session.run("find_long_transactions", wanted):
            _log.warning(
                "the transaction of %s #%d has been open for %.0f s: nothing that is updated or deleted meanwhile can be vacuumed, in the whole "
                "database; do the slow part before it, and in `with job.transaction():` only what belongs together",
                kind, job, seconds, extra={"job": job},
            )  # fmt: skip

    def _keep_partitions(self, now: float, *, ready: bool = True) -> bool:
        """Make a few of the partitions that are missing, or drop those whose day is past; return whether there are more to make.

        ready: whether the parent has been told that we are; until then a default partition is left alone that may be long to look through.
        """
        self._parted = False
        begun = time.monotonic()
        try:
            wanted = {"least": AHEAD, "most": FARTHEST, "crowded": CROWDED}
            [(ahead, crowded, locks)] = self._session.run("count_days_ahead", wanted)
            if crowded is None:  # another keeper is at it, for minutes perhaps: what follows would wait, and what becomes due for us
                self._partitions_at = now + _AGAIN
                return False
            if crowded and not ready:
                return False
            with self._session.unhurried(_SLOW):
                [(made, dropped)] = self._session.run("keep_partitions", {"ahead": ahead, "most": _FEW}, stubborn=False)
        except psycopg.Error as problem:
            if not is_away(problem):
                raise
            # A long read of the past: what falls into the default partition until then moves later, and nothing is lost.
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
        self._session.run("drop_demands")
        if keep := self._spec.settings.audit_keep:
            self._old["drop_audit"] = {"most": MOST, "keep": keep}
        if self._made or dropped:
            _log.info("made %d partitions, dropped %d", self._made, dropped)
            self._made = 0
        if locks is not None:
            _log.warning(
                "jobs are kept for longer than the %d days that there are partitions for: each day's are looked for in all of the default one, "
                "and nobody settles meanwhile; set the server's max_locks_per_transaction to %d, or keep them for less long",
                ahead, locks,
            )  # fmt: skip
        return False

    def _count_past(self) -> None:
        """Count what has ended since the last look, unless a due job would be made to wait for it."""
        looks, begun = self._looks, time.monotonic()
        if not self._parted:
            # A row that moves to its partition looks new, and would be counted twice.
            self._count_at = max(self._partitions_at, begun + _QUIET)
            return
        if looks.took > _MOVING and begun + 2 * looks.took > self._due_at and begun < self._counted + looks.pause + _UNCOUNTED:
            self._count_at = max(begun, self._due_at) + _MOVING
            return
        with self._session.unhurried(max(20 * looks.took, _PATIENCE) if self._counted else _SLOW):
            [(_, behind)] = self._session.run("count_past", {"span": looks.span, "lag": LAG})
        self._counted = time.monotonic()
        looks.done(took=self._counted - begun, behind=behind)
        self._count_at = self._counted + looks.pause
        if self._counted >= self._coarsen_at:
            self._coarsen_at = self._counted + COARSEN
            for step, coarser, older in STEPS:
                self._session.run("coarsen_rollup", {"step": step, "coarser": coarser, "older": older})
            self._session.run("drop_rollup", {"days": KEEP_DAYS})

    def _drop_old(self) -> None:
        """Delete some of what is old, and no more: a day's logs fall due at once, millions of rows, and jobs come due meanwhile."""
        statement, wanted = next(iter(self._old.items()))
        if self._session.count(statement, wanted) < MOST:
            del self._old[statement]

    def _clear_away(self) -> None:
        """Vacuum the tables that turn over, where it pays and no due job is made to wait for it."""
        rows = self._session.run("measure_dead")
        for table, dead, live in rows:
            begun = time.monotonic()
            if self._clearing.pays(table, dead=dead, live=live, now=begun) and begun + 2 * self._clearing.took < self._due_at:
                with self._session.unhurried(_SLOWEST):
                    self._session.run_alone(VACUUMS[table])  # refused or not: what it has left is for the next one, in a while
                left = {name: dead for name, dead, _ in self._session.run("measure_dead")}
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
            self._session.run("write_progress", {"jobs": jobs, "tokens": tokens, "progresses": progresses})


def _progress_on(board: StatusBoard) -> tuple[int, int, bytes] | None:
    """Return job, token and progress of what runs on a board; None if nothing does, or if it changed while we looked."""
    before = board.now()
    if before is None or before.phase is not Phase.RUNNING or not before.job or board.tally.policy(before.kind).table:
        return None  # a record's number may be a job's as well, who would be shown its progress
    text = board.progress()
    after = board.now()
    if not text or after is None or (after.job, after.token) != (before.job, before.token):
        return None
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # one bad record would keep all others out of the database
    return before.job, before.token, text


def _dismiss(context: ChildContext, _frame: FrameType | None) -> None:
    context.wake.dismissed = True
    context.wake.poke()


def _children_of(context: ChildContext) -> set[int]:
    """Return the pids of all children but this one, as the parent last published them. Each leads a process group of its number."""
    children = context.spec.control.facts().get("children")
    found = [child.get("pid") for child in children if isinstance(child, dict)] if isinstance(children, list) else []
    return {pid for pid in found if isinstance(pid, int) and pid > 1} - {os.getpid()}
