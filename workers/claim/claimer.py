"""Waits for work, checks whether a worker may claim, and claims its next jobs.

It chooses the claiming statement and the number of jobs. Race: no wake may be lost between an empty
claim and the sleep, so the epoch of the control block is read before the claim and again after this
worker shows itself idle. The outcomes of the last claim and the next claim travel together, so a
claim costs one round trip and one wait for the disk. This module runs no job of the queue. If the
queue has no job, it works one record of the application's own tables.
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
from jobherd.workers.run.durations import LEAST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Session
    from jobherd.workers.database.opening import Row
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.state_guard import StateGuard
    from jobherd.workers.run.batch import BatchExecutor
    from jobherd.workers.run.hooks import Caller
    from jobherd.workers.settle.in_flight import InFlightClaim
    from jobherd.workers.stores.runner import Tables

_log = logging.getLogger("jobherd.worker")

_LOOK: Final = 0.0002
"""Seconds between two checks of the wake pipe while a claim runs. A check costs a microsecond."""
_LAPSED: Final = 0.2
_HELD_BY_OTHERS: Final = 0.25
"""Seconds before a worker looks again at a queue whose ready rows are all locked by other sessions."""
CHECK: Final = 60.0
"""Seconds between two checks for jobs that are claimed in this worker's name without its knowledge."""
AHEAD: Final = 0.0025
"""Least total duration of a claim's jobs, in seconds, for which the next claim is made before their
outcomes are recorded. With shorter jobs, the answer would not have arrived when the next jobs have
finished. Waiting for it costs another sleep: drains of 100 jobs per claim, which took 1 ms
together, were slower by an eighth (tests/bench/against.py).
"""
_OWN_POLL: Final = 60
"""Polls after which a worker claims without a wake, in case its supervisor hangs. Normally the
supervisor wakes one worker per poll. The number is high because 64 idle workers must not send 64
times as many queries as one.
"""


class Claimer:
    """Makes the claims of a worker.

    handlers: the handlers of queue jobs. The constructor's argument of this name includes table
    stores.
    claimed_at: monotonic time at which the answer to the last claim arrived.
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
        self._turns = (
            Turns(settings.served, dict(settings.queue_weights), dict(settings.queue_priorities))
            if settings.queue_turns
            else None
        )
        """None: the order of the queues is strict."""
        self._wanted = 1 if settings.claim_window else settings.most_claimed
        """Jobs that the next claim requests. The claim locks this many, but may take fewer."""
        self._fewest = 1
        if executor.sizes and settings.claim_window:
            # A claim that is too small for a batch call would never be enlarged: an unseen kind
            # counts as long.
            self._wanted = self._fewest = min(settings.most_claimed, max(executor.sizes.values()))
        self._kinds: list[str] | None = [] if settings.claim_window else None
        self._shares: list[float] | None = [] if settings.claim_window else None
        """The share of a claim that a job of each of these kinds fills. Without shares, only the
        number of jobs limits a claim.
        """
        self._short: list[str] = []
        self._gated = bool(settings.queue_max_concurrency) or any(queue.endswith("*") for queue in settings.served)
        """Whether claims must check pauses, queue prefixes and limits. The settings require it, or
        the answer to a claim has said so.
        """
        self._paused: set[str] = set()
        """Kinds of table stores that are paused; `*` for all."""
        self._pauses_epoch, self._pauses_at = -1, 0.0
        self._last = ("", "")
        """Queue and kind of the last job claimed with `claim_gated`. Other workers may be waiting
        for its place in a concurrency limit.
        """
        self._woken = False
        self._looked_at = 0.0
        self._checked_at = time.monotonic()
        self._weigh()

    # -- waiting

    def next(self) -> list[JobRow] | None:
        """Wait for the next claim and return its jobs, or None when the worker must exit."""
        avoided: list[str] = []
        epoch = 0
        rested = False
        """The worker was just idle. All checks ran before it slept, and a producer may wait for
        this job to start.
        """
        tabled = False
        """A table record was just worked, so the queue is next."""
        while True:
            if not rested:
                now = time.monotonic()
                self._tidy.look(now)  # First, because it checks whether this worker's file descriptors are intact.
                self.look(now)
            if self._wake.dismissed or self._tidy.worn:
                return None
            if self._control.draining or time.monotonic() >= self._control.lease_deadline - self._settings.lease / 5:
                # Do not claim without a valid lease: another supervisor may be reclaiming these
                # jobs. Nor begin an exclusive job when it would be ended at once: worker after
                # worker would claim it and be interrupted until the lease is renewed.
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
                    continue  # The record may have taken long, so check again whether to claim.
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
                # The first pause or limit was added, or the last one was removed.
                self._gated, self._last = not self._gated, ("", "")
                continue
            if rows and not rows[-1].id:
                # Other sessions, which may be slow, have locked every ready job of that queue. Try
                # the other queues.
                avoided.append(rows[-1].queue)
                continue
            if not rows and self._work_table():
                avoided.clear()
                continue
            if not rows:
                # Releasing a row lock notifies no worker, so a worker that found locked rows tries
                # again soon.
                self._idle(epoch, _HELD_BY_OTHERS if avoided else self._settings.poll * _OWN_POLL)
                rested = True
            avoided.clear()

    def look(self, now: float) -> None:
        """Check the wake pipe for a wake or a dismissal, but not after every job of a few microseconds."""
        if now - self._looked_at > _LOOK:
            self._looked_at = now
            if self._wake.look():
                self._woken = True

    def tell_of_more(self) -> None:
        """Report that more jobs are ready than this worker takes.

        If this worker was woken, the supervisor then wakes another worker.
        """
        if self._woken:
            send(self._spec.report, MoreWork())
            self._woken = False

    def _idle(self, epoch: int, longest: float) -> None:
        # Not the time of the last claim: a hook may reject every claim before it is made.
        if self._give_back_unheard(time.monotonic()):
            return
        longest *= random.uniform(0.9, 1.1)
        if self._session.pooled:
            # A session without a pooler leaves no unknown claims: it is ended before the next one
            # starts.
            longest = min(longest, CHECK)
        longest = min(longest, self._executor.recorder.job_log.summarize())
        # Otherwise the idle time's CPU usage, perhaps of a whole night, would count toward the next
        # job.
        self._executor.usage.restart()
        self.rest(epoch, self._scan_start.rest(longest, time.monotonic()) if self._scan_start.left_out else longest)
        self._woken = True

    def _give_back_unheard(self, now: float) -> bool:
        """Every `CHECK` seconds, release jobs claimed in this worker's name whose answer was lost.

        Return whether there were any.

        Otherwise those jobs would wait for as long as this process lives.
        """
        if now - self._checked_at < CHECK:
            return False
        self._checked_at = now
        self._settle_apart()
        return self._session.requeue_unacknowledged()

    def _settle_apart(self) -> None:
        """Write pending outcomes before any query that is not a claim.

        If the worker were dismissed during that query, it would exit without writing them.
        """
        self._in_flight.settle()

    def rest(self, epoch: int, longest: float) -> bool:
        """Sleep until a wake, at most `longest` seconds, unless the epoch is no longer `epoch`.

        Return whether this worker was woken.
        """
        called = False
        self._board.set_idle(idle=True)
        barrier()
        # A worker that was dismissed during the claim gets no further wake.
        if self._control.epoch == epoch and not self._wake.dismissed:
            if not self._control.hearing:
                # Otherwise no producer would send a notification: the supervisor believes that this
                # worker is busy.
                send(self._spec.report, WentIdle())
            self._in_flight.say(Phase.IDLE)
            self._executor.title.show("idle")
            called = self._wake.wait(longest)
        self._board.set_idle(idle=False)
        return called

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._woken = True  # A wake arrived although this worker was not idle.

    def leave(self) -> None:
        """Notify other workers of the concurrency limit's place that this worker used last.

        It claims nothing more, so its next claim cannot announce that place.
        """
        if self._last[0]:
            self._session.run("wake/notify_workers", {"queue": "*"})

    # -- claiming

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        """Write the pending outcomes and make the next claim in one round trip."""
        if not self.handlers:
            return []  # This worker serves table stores only.
        scan_start, in_flight = self._scan_start, self._in_flight
        # After a wake, a producer may wait for the job to start, so this check is postponed.
        if scan_start.doubt and not rested:
            self._settle_apart()
            dead = {table: dead for table, dead, _ in self._session.run("maintenance/count_dead_rows")}
            scan_start.note_dead(dead["ready"], named=bool(self._settings.served), now=time.monotonic())
        by, claim = self._statement(avoided, rested=rested)
        begun, together = time.monotonic(), bool(in_flight.unsettled)
        rows = None
        if together:
            rows = in_flight.settle_and_claim(
                by, claim, ahead=begun - self.claimed_at >= AHEAD and self._may_go_ahead(by)
            )
        else:
            # A transaction has settled the in-flight claim, or the claim is lost. The outcomes of
            # the claim before it may still be unconfirmed.
            in_flight.make_sure()
        if rows is None:
            if not rested:
                in_flight.say(Phase.CLAIMING)
            rows = self._send_claim(by, claim, eager=rested)
        self.claimed_at = self._looked_at = time.monotonic()
        self._board.count_claim(empty=not rows)
        if (turns := self._turns) is not None:
            if not rows and turns.shared and claim["served"] == [turns.last]:
                scan_start.turn_until = self.claimed_at  # That queue is empty, so the next claim considers all queues.
                return self._claim(avoided, rested=rested)
            if not rows or rows[0][0] is not None:
                turns.note(rows[0][3] if rows else "")
        if not rested:
            self._executor.usage.restart()
        found = [JobRow._make(row) for row in rows]
        if not found and self._gated:
            # The claim has already notified other workers of this place. If each empty claim
            # repeated that, idle workers would wake each other indefinitely.
            self._last = ("", "")
        took = self.claimed_at - begun
        if (scan_start.until or took > LONG) and (by == SOUGHT or by in WALKS):
            scan_start.note_claim(
                found,
                sought=by == SOUGHT,
                took=took,
                together=together and in_flight.behind is None,
                now=self.claimed_at,
            )
        return found

    def _may_go_ahead(self, by: str) -> bool:
        """Return whether the next claim may be made before the outcomes of the last one are recorded.

        That needs a claim without concurrency limits, without a budget and without a pooled
        session. It also needs the setting `claim_window`: with it, the supervisor records the outcomes if
        their settlement is lost and a job runs long.
        """
        return (
            by in {"claim/claim_jobs", SOUGHT}
            and self._wanted > 1
            and not self._session.pooled
            and bool(self._settings.claim_window)
        )

    def _send_claim(self, by: str, claim: Mapping[str, object], *, eager: bool) -> list[Row]:
        return self._session.run_urgent(by, claim) if eager else self._session.run(by, claim)

    def _statement(self, avoided: Sequence[str], *, rested: bool) -> tuple[str, dict[str, object]]:
        """Return the name and the parameters of the next claiming statement.

        Each such statement returns the rows of claim_jobs.sql.
        """
        settings = self._settings
        spent = time.monotonic() - self.claimed_at
        claim: dict[str, object] = {
            "supervisor": self._spec.supervisor,
            "child": self._session.child,
            "served": settings.served or None,
            "turns": None,
            "avoided": avoided or None,
            "wanted": self._wanted,
            "kinds": self._kinds,
            "shares": self._shares,
            "short": self._short,
        }
        if self._gated:
            claim["limited"], claim["limits"] = (
                map(list, zip(*settings.queue_max_concurrency, strict=True))
                if settings.queue_max_concurrency
                else (None, None)
            )
            claim["left_queue"], claim["left_kind"] = self._last if self._last[0] else (None, None)
            claim["narrowed"] = False
            claim["tiers"] = None
            if self._turns is not None:
                claim["turns"], claim["tiers"] = self._turns.order(spent), self._turns.tiers
            return self.narrow("claim/claim_gated", claim)
        if self._turns is not None:
            claim["turns"] = self._turns.order_served(spent) if settings.served else self._turns.order(spent)
        alone = rested and settings.claim_window and not self._executor.sizes
        by, claim = self.narrow("claim/claim_job" if alone else "claim/claim_jobs", claim)
        if (turns := self._turns) is not None and turns.shared and self._scan_start.turn_until and by in WALKS:
            # A claim can skip the dead rows of one queue only. The full scan of all queues waits
            # until the next turn.
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
        """Add the conditions of this worker to a claiming statement and its parameters.

        This class adds none.
        """
        return by, claim

    def _sort(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Return the rows that are claimed jobs. Release jobs beyond the requested number."""
        batch = [row for row in rows if row.token is not None]
        if batch:
            self._in_flight.token = batch[0].token
            if self._gated:
                self._last = (batch[0].queue, batch[0].kind)
            surplus = batch[self._wanted :]
            if surplus:
                # A query plan that executes a locking LIMIT more than once can do this: see
                # claim_jobs.sql.
                _log.error(
                    "a claim returned %d jobs, %d more than requested: releasing the surplus", len(batch), len(surplus)
                )
                self._in_flight.hand_back(surplus)
                del batch[len(batch) - len(surplus) :]
        return batch

    def adapt(self, batch: Sequence[JobRow]) -> None:
        """Set the next claim's size to the number of jobs like these that fill `claim_window` seconds.

        This runs before the claim, because a producer may wait for that claim.
        """
        settings, durations = self._settings, self._executor.durations
        self._short = durations.short()
        self._weigh()
        if settings.claim_window:
            expected = sum(durations.expected(row.kind) for row in batch) / len(batch)
            self._wanted = max(
                self._fewest, min(settings.most_claimed, 1 + int(settings.claim_window / max(expected, LEAST)))
            )

    def _weigh(self) -> None:
        """Set the share of the next claim that a job of each kind fills.

        Kinds that must be claimed alone have no share, and are claimed alone.
        """
        durations, window = self._executor.durations, self._settings.claim_window
        if window or durations.alone:
            shares = durations.shares(window) if window else dict.fromkeys(self.handlers.keys() - durations.alone, 0.0)
            self._kinds, self._shares = list(shares), list(shares.values())

    # -- the application's own tables

    def _work_table(self) -> bool:
        """Work one record of the application's own tables, if one waits.

        Return whether there was one.
        """
        if self._tables is None or self._wake.dismissed or self._tidy.worn:
            return False
        if self._pauses_epoch != self._control.epoch or time.monotonic() >= self._pauses_at:
            # The claims of table stores are the application's statements and do not check pauses. A
            # new pause changes the epoch, as a new job does.
            self._pauses_epoch, self._pauses_at = self._control.epoch, time.monotonic() + self._settings.poll
            self._paused = {row[0] for row in self._session.run("control/find_pauses")}
        worked = self._tables.work(lambda kind: self._paused.isdisjoint((kind, "*")) and self._admits(kind))
        if worked:
            self._tidy.examine()
        self._tidy.worn = self._tidy.worn or self._hooks.torn
        return worked

    def _admits(self, _kind: str) -> bool:
        """Return whether records of that store may be taken now."""
        return True
