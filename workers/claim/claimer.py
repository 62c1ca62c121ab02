"""How a worker comes to its next jobs: it waits, looks whether it may, and claims; by which statement, and for how many.

Between an empty claim and the sleep nothing may slip through: the epoch of the parent's notice is noted before the claim and read again
once this child shows itself idle. The settlement of the last claim and the next claim travel together, so a batch costs one round trip
and one wait for the disk. It runs no job of the queue; when there is none, a record of the application's own tables.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.table_store import TableHandler
from jobherd.workers.claim.scan_start import LONG, SOUGHT, WALKS, ScanStart
from jobherd.workers.claim.turns import Turns
from jobherd.workers.ipc.pipes import MoreWork, WentIdle, send
from jobherd.workers.ipc.record import barrier
from jobherd.workers.ipc.status_board import Phase
from jobherd.workers.job.row import JobRow
from jobherd.workers.run.executor import LEAST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Row, Session
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.run.batch import BatchExecutor
    from jobherd.workers.run.hooks import Caller
    from jobherd.workers.settle.in_flight import InFlightClaim
    from jobherd.workers.stores.runner import Tables

_log = logging.getLogger("jobherd.worker")

_LOOK: Final = 0.0002
"""Seconds between two looks at the wake pipe while a batch runs: a look costs a microsecond."""
_LAPSED: Final = 0.2
_HELD_BY_OTHERS: Final = 0.25
"""Seconds before a child looks again at a queue whose every waiting row somebody has locked."""
CHECK: Final = 60.0
"""Seconds between two looks of a child whether the database has jobs in its name of which it does not know."""
AHEAD: Final = 0.0025
"""Seconds that a claim's jobs take at the least where the next claim is made before they are written. Of shorter ones the answer would not be there when the
next are through: waiting for it costs another sleep, and drains of 100 jobs a claim, of 1 ms together, were slower by an eighth (tests/bench/against.py)."""
_OWN_POLL: Final = 60
"""The parent nudges one child each poll; a child asks by itself, should its parent hang, so many polls after it last heard anything:
sixty-four idle children must not ask sixty-four times as often as one."""


class Claimer:
    """Claims for a worker.

    handlers: what this child runs, tables included; `handlers` of the claimer is without these.
    claimed_at: monotonic time at which the last claim's answer came.
    """

    def __init__(
        self,
        context: ChildContext,
        handlers: Mapping[str, AnyHandler],
        hooks: Caller,
        *,
        session: Session,
        in_flight: InFlightClaim,
        executor: BatchExecutor,
        state_guard: StateGuard,
        tables: Tables | None,
    ) -> None:
        self.handlers = {kind: handler for kind, handler in handlers.items() if not isinstance(handler, TableHandler)}
        self.claimed_at = 0.0
        self._spec = context.spec
        self._board = context.spec.board
        self._control = context.spec.control
        self._settings = settings = context.spec.settings
        self._wake = context.wake
        self._hooks = hooks
        self._session = session
        self._in_flight = in_flight
        self._executor = executor
        self._tidy = state_guard
        self._tables = tables
        self._scan_start = ScanStart()
        self._turns = Turns(settings.queues, settings.queue_weights, settings.queue_tiers) if settings.queue_turns else None
        """None: the order of the queues is strict."""
        self._wanted = 1 if settings.hold else settings.batch
        """How many jobs the next claim asks for. It locks so many, though it may take fewer."""
        self._fewest = 1
        if executor.sizes and settings.hold:
            # A claim that is too small for a call would never be found to be: a kind that was not seen yet is taken for long.
            self._wanted = self._fewest = min(settings.batch, max(executor.sizes.values()))
        self._kinds: list[str] | None = [] if settings.hold else None
        self._shares: list[float] | None = [] if settings.hold else None
        """How much of a batch a job of each of these kinds fills; without them the number alone counts."""
        self._short: list[str] = []
        self._gated = bool(settings.limits) or any(queue.endswith("*") for queue in settings.queues)
        """Whether gates, prefixes or limits of our own are to be looked at: the settings ask for it, or a claim has said so."""
        self._paused: set[str] = set()
        """Kinds of own tables that nobody works now; * for all."""
        self._pauses_epoch, self._pauses_at = -1, 0.0
        self._last = ("", "")
        """Queue and kind of the job that was claimed last under gates: its slot may be wanted by others."""
        self._woken = False
        self._looked_at = 0.0
        self._checked_at = time.monotonic()
        self._weigh()

    # -- waiting ----------------------------------------------------------------------------------------------------

    def next(self) -> list[JobRow] | None:
        """Return the jobs of the next claim, however long they take to come; None when it is time to leave."""
        avoided: list[str] = []
        epoch = 0
        rested = False
        """Just out of idleness: all was looked at before it, and somebody waits for this job to start."""
        tabled = False
        """A record was worked: now it is the queue's turn."""
        while True:
            if not rested:
                now = time.monotonic()
                self._tidy.look(now)  # first: it looks whether our files are still ours
                self.look(now)
            if self._wake.dismissed or self._tidy.worn:
                return None
            if self._control.draining or time.monotonic() >= self._control.lease_deadline - self._settings.lease / 5:
                # Whoever cannot renew the lease claims nothing: others may be about to take the jobs. And where an exclusive job would
                # be ended, none is begun: it would be claimed and torn out, child after child, until the lease is renewed.
                self._settle_apart()
                self._sleep(_LAPSED)
                rested = False
                continue
            if not rested:
                self._give_back_unheard(now)
            if not avoided:
                epoch = self._control.epoch
            if self._tables is not None and not rested and not tabled and self._tables.is_due():
                self._settle_apart()
                if tabled := self._work_table():
                    continue  # it may have taken long: is there still a claim to be made?
            tabled = False
            rows = self._claim(avoided, rested=rested)
            rested = False
            batch = self._sort(rows)
            if batch:
                if self._woken and batch[0].more:
                    self.tell_of_more()
                self._woken = False
                return batch
            if rows and not rows[-1].id and not rows[-1].queue:
                self._gated, self._last = not self._gated, ("", "")  # gates have appeared, or the last one has gone
                continue
            if rows and not rows[-1].id:
                # Every waiting job of that queue is in other hands, which may be slow: what about the other queues?
                avoided.append(rows[-1].queue)
                continue
            if not rows and self._work_table():
                avoided.clear()
                continue
            if not rows:
                # Nobody calls when a lock is let go of, so whoever found one asks again soon.
                self._idle(epoch, _HELD_BY_OTHERS if avoided else self._settings.poll * _OWN_POLL)
                rested = True
            avoided.clear()

    def look(self, now: float) -> None:
        """See whether the parent has let go of us; not after every job of a few microseconds."""
        if now - self._looked_at > _LOOK:
            self._looked_at = now
            if self._wake.look():
                self._woken = True

    def tell_of_more(self) -> None:
        """There is more than this child takes: if it was called, the next one is to be."""
        if self._woken:
            send(self._spec.report, MoreWork())
            self._woken = False

    def _idle(self, epoch: int, longest: float) -> None:
        if self._give_back_unheard(time.monotonic()):  # not the time of the last claim: a hook may refuse each before it is made
            return
        longest *= random.uniform(0.9, 1.1)
        if self._session.pooled:
            longest = min(longest, CHECK)  # of a session of our own nothing is unheard: it is ended before the next one
        longest = min(longest, self._executor.job_log.summarize())
        self._executor.look_at_clock()  # else the next job would be said to have used what looking for it took, all night perhaps
        self.rest(epoch, self._scan_start.rest(longest, time.monotonic()) if self._scan_start.left_out else longest)
        self._woken = True

    def _give_back_unheard(self, now: float) -> bool:
        """Once in a while: what was claimed for us and is not in our hand would wait for as long as we live. Return whether there was any."""
        if now - self._checked_at < CHECK:
            return False
        self._checked_at = now
        self._settle_apart()
        return self._session.release_unheard()

    def _settle_apart(self) -> None:
        """Write what is not written, before anything is asked that is no claim: told to leave while that waits, we would leave without."""
        self._in_flight.settle()

    def rest(self, epoch: int, longest: float) -> bool:
        """Sleep as one who can be called, unless somebody was called since `epoch`; return whether we were."""
        called = False
        self._board.set_idle(idle=True)
        barrier()
        if self._control.epoch == epoch and not self._wake.dismissed:  # who was dismissed during the claim hears nothing more
            if not self._control.hearing:
                send(self._spec.report, WentIdle())  # or nobody would notify of a job: the parent took us for busy
            self._in_flight.say(Phase.IDLE)
            self._executor.show("idle")
            called = self._wake.wait(longest)
        self._board.set_idle(idle=False)
        return called

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._woken = True  # a nudge that came while this child was not idle after all

    def leave(self) -> None:
        """Tell others of what no claim of ours will take again: the slot of the job under gates that was claimed last."""
        if self._last[0]:
            self._session.run("tell_sleepers", {"queue": "*"})

    # -- claiming ---------------------------------------------------------------------------------------------------

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        """Settle what is not settled and claim, together."""
        if not self.handlers:
            return []  # only tables are worked here: the queue's jobs are for others
        scan_start, in_flight = self._scan_start, self._in_flight
        if scan_start.doubt and not rested:  # somebody waits for the job of whoever was just called
            self._settle_apart()
            dead = {table: dead for table, dead, _ in self._session.run("measure_dead")}
            scan_start.note_dead(dead["ready"], named=bool(self._settings.queues), now=time.monotonic())
        by, claim = self._statement(avoided, rested=rested)
        begun, together = time.monotonic(), bool(in_flight.unsettled)
        rows = None
        if together:
            rows = in_flight.settle_and_claim(by, claim, ahead=begun - self.claimed_at >= AHEAD and self._may_go_ahead(by))
        else:
            in_flight.make_sure()  # a transaction has settled the claim in hand, or it is lost: the one before may still be on its way
        if rows is None:
            if not rested:
                in_flight.say(Phase.CLAIMING)
            rows = self._send_claim(by, claim, eager=rested)
        self.claimed_at = self._looked_at = time.monotonic()
        self._board.count_claim(empty=not rows)
        if (turns := self._turns) is not None:
            if not rows and turns.shared and claim["served"] == [turns.last]:
                scan_start.turn_until = self.claimed_at  # this queue is empty: look at all of them
                return self._claim(avoided, rested=rested)
            if not rows or rows[0][0] is not None:
                turns.note(rows[0][3] if rows else "")
        if not rested:
            self._executor.look_at_clock()
        found = [JobRow._make(row) for row in rows]
        if not found and self._gated:
            # Told by this claim. Told again by each that finds nothing, idle workers would call each other for ever.
            self._last = ("", "")
        took = self.claimed_at - begun
        if (scan_start.until or took > LONG) and (by == SOUGHT or by in WALKS):
            scan_start.note_claim(
                found, sought=by == SOUGHT, took=took, together=together and in_flight.behind is None, now=self.claimed_at
            )
        return found

    def _may_go_ahead(self, by: str) -> bool:
        """Whether the next claim may be made before the last one is written: no cap can be full of that one, no budget, and no shared session hold it.

        And the parent looks after it, should its settlement be lost and a job run long: without `hold` it does not look.
        """
        return by in {"claim_jobs", SOUGHT} and self._wanted > 1 and not self._session.pooled and bool(self._settings.hold)

    def _send_claim(self, by: str, claim: Mapping[str, object], *, eager: bool) -> list[Row]:
        return self._session.hurry(by, claim) if eager else self._session.run(by, claim)

    def _statement(self, avoided: Sequence[str], *, rested: bool) -> tuple[str, dict[str, object]]:
        """Return by which statement the next claim is made, and its parameters; all of them answer with the rows of claim_jobs.sql."""
        settings = self._settings
        spent = time.monotonic() - self.claimed_at
        claim: dict[str, object] = {
            "supervisor": self._spec.supervisor,
            "child": self._session.child,
            "served": settings.queues or None,
            "turns": None,
            "avoided": avoided or None,
            "wanted": self._wanted,
            "kinds": self._kinds,
            "shares": self._shares,
            "short": self._short,
        }
        if self._gated:
            claim["limited"], claim["limits"] = map(list, zip(*settings.limits, strict=True)) if settings.limits else (None, None)
            claim["left_queue"], claim["left_kind"] = self._last if self._last[0] else (None, None)
            claim["narrowed"] = False
            claim["tiers"] = None
            if self._turns is not None:
                claim["turns"], claim["tiers"] = self._turns.order(spent), self._turns.tiers
            return self.narrow("claim_gated", claim)
        if self._turns is not None:
            claim["turns"] = self._turns.order_served(spent) if settings.queues else self._turns.order(spent)
        alone = rested and settings.hold and not self._executor.sizes
        by, claim = self.narrow("claim_job" if alone else "claim_jobs", claim)
        if (turns := self._turns) is not None and turns.shared and self._scan_start.turn_until and by in WALKS:
            # A claim seeks past the dead rows of one queue. A walk past those of all queues is made only for the next turn.
            if turns.last in {"", *avoided} or time.monotonic() >= self._scan_start.turn_until:
                return by, claim
            claim["served"] = [turns.last]
        if self._scan_start.until and self._scan_start.seeks(by, time.monotonic()):
            place = self._scan_start.place or (None, None, None)
            claim |= dict(zip(("past_queue", "past_priority", "past_id"), place, strict=True))
            claim["back"] = self._scan_start.back
            if alone or self._scan_start.back:
                claim["wanted"] = 1
            return SOUGHT, claim
        return by, claim

    def narrow(self, by: str, claim: dict[str, object]) -> tuple[str, dict[str, object]]:
        """Return a statement that claims, and its parameters, so that it takes only what this child may take: here, everything."""
        return by, claim

    def _sort(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Return the jobs to run."""
        batch = [row for row in rows if row.token is not None]
        if batch:
            self._in_flight.token = batch[0].token
            if self._gated:
                self._last = (batch[0].queue, batch[0].kind)
            surplus = batch[self._wanted :]
            if surplus:
                # A plan that locks a LIMIT again and again can do this: see claim_jobs.sql.
                _log.error("the claim took %d jobs, %d more than asked: handing them back", len(batch), len(surplus))
                self._in_flight.hand_back(surplus)
                del batch[len(batch) - len(surplus) :]
        return batch

    def adapt(self, batch: Sequence[JobRow]) -> None:
        """Ask next time for as many as jobs like these would fill a batch: reckoned now, for the next claim may be waited for."""
        settings, executor = self._settings, self._executor
        self._short = executor.short()
        self._weigh()
        if settings.hold:
            expected = sum(executor.expected(row.kind) for row in batch) / len(batch)
            self._wanted = max(self._fewest, min(settings.batch, 1 + int(settings.hold / max(expected, LEAST))))

    def _weigh(self) -> None:
        """Say how much of the next claim a job of each kind fills; of those that must be alone nothing is said, and they are taken alone."""
        executor, hold = self._executor, self._settings.hold
        if hold or executor.alone:
            shares = executor.shares(hold) if hold else dict.fromkeys(self.handlers.keys() - executor.alone, 0.0)
            self._kinds, self._shares = list(shares), list(shares.values())

    # -- the application's own tables -------------------------------------------------------------------------------

    def _work_table(self) -> bool:
        """Work a record of the application's own tables, if one waits; return whether there was one."""
        if self._tables is None or self._wake.dismissed or self._tidy.worn:
            return False
        if self._pauses_epoch != self._control.epoch or time.monotonic() >= self._pauses_at:
            # Their claims are the application's statements, and look at no gate. News of gates changes the epoch, as news of jobs does.
            self._pauses_epoch, self._pauses_at = self._control.epoch, time.monotonic() + self._settings.poll
            self._paused = {row[0] for row in self._session.run("find_pauses")}
        worked = self._tables.work(lambda kind: self._paused.isdisjoint((kind, "*")) and self._admits(kind))
        if worked:
            self._tidy.examine()
        self._tidy.worn = self._tidy.worn or self._hooks.torn
        return worked

    def _admits(self, _kind: str) -> bool:
        """Whether records of that store may be taken now."""
        return True
