"""What the supervisor knows about its children. Bookkeeping only.

The module makes no system call, reads no clock and decides nothing. The loop reports what happened
and when (`on_message`, `on_exit`, `on_signal`), and `plan` reads the result. So a test of any
policy needs only a fleet, a number for the current time, and the list of actions.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from enum import Enum
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.kinds import KINDS, MAINTENANCE, WORKER, Kind
from jobherd.supervisor.policy.slot import Death, End, Exit, Slot, Stage, State, StopReason, StopSequence
from jobherd.supervisor.policy.stragglers import Situation, smoothed_load
from jobherd.workers.ipc.pipes import (
    EXIT_HANDLERS,
    EXIT_LEFT,
    EXIT_WORN,
    CancelJob,
    HasStores,
    MoreWork,
    Mourns,
    Problem,
    Ready,
    Report,
    WentIdle,
)
from jobherd.workers.ipc.status_board import CurrentWork, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jobherd.supervisor.policy.limits import Limits
    from jobherd.supervisor.policy.slot import HeldClaim


class RunState(Enum):
    """The phase of the supervisor. It only moves down this list."""

    SERVING = 1
    DRAINING = 2
    """After one signal to stop.

    Claim nothing more, finish running jobs within the drain timeout.
    """
    FAST_SHUTDOWN = 3
    """After a second signal: release running jobs, and exit within a second or two."""
    IMMEDIATE_SHUTDOWN = 4
    """After a signal to quit at once: kill every child."""


class Fleet:
    """All slots, and the facts that concern the whole supervisor."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # one spare slot, to replace the last worker without a gap
        workers = [Slot(number, WORKER) for number in range(limits.max_workers + 1)]
        others = [
            Slot(limits.max_workers + 1 + place, kind)
            for place, kind in enumerate(kind for kind in KINDS if not kind.works)
        ]
        self.slots = [*workers, *others]
        self._alive: tuple[Slot, ...] = ()
        self.run_state = RunState.SERVING
        self.course_since = 0.0
        self.wanted = limits.workers
        self.lease_deadline = float("inf")
        """Monotonic time from which the supervisor's lease may have expired."""
        self.supervisor = 0
        """The registered supervisor id; 0: not registered, so no child is forked."""
        self.database_since: float | None = None
        """Since when the supervisor has its database session; None: it has none."""
        self.ever_ready = False
        """A worker of this run has loaded its handlers."""
        self.incarnations = 0
        self.generation = 0
        self.pending_wakeups = 0
        """Number of idle children that should be woken."""
        self.kinds_to_wake: set[Kind] = set()
        """Kinds of which every child should be woken."""
        self.mourns = False
        """A worker has `on_death` hooks."""
        self.stores = False
        """A worker serves a table of the application."""
        self.stores_alone = False
        """The workers claim nothing from the queue, only from such tables."""
        self.busy_since: float | None = None
        """Since when no worker was seen idle; None: one may be idle."""
        self.offloads = Situation()
        self.unrecovered: set[int] = set()
        """Dead children, by incarnation, whose jobs are not released yet."""
        self.buried_at = 0.0
        """When the jobs of the last death were settled."""
        self.plan_at = 0.0
        """When the plan must be made again at the latest."""
        self.exit_code: int | None = None
        self.deaths: Counter[str] = Counter()
        self.ends: deque[End] = deque(maxlen=10)
        """The latest unexpected ends, oldest first."""
        self.respawns = 0
        self.last_told = float("-inf")
        self.reloading = False
        self.reload_answer: str | None = None
        """Whether the code of the latest reload loads. Empty: a worker with that code became READY;
        a text: why it failed; None: not known yet."""
        self.notes: list[str] = []
        """Messages for the log at level INFO; the loop takes them."""
        self.warnings: list[str] = []
        """Messages for the log at level WARNING."""
        self._problems: set[str] = set()

    # -- queries

    def workers(self) -> Iterator[Slot]:
        """Return the slots whose children claim jobs."""
        return (slot for slot in self.slots if slot.kind.works)

    def alive(self) -> tuple[Slot, ...]:
        """Return the slots that a process fills."""
        return self._alive

    def by_incarnation(self, incarnation: int) -> Slot | None:
        """Return the slot of that child, or None if it is dead."""
        return next((slot for slot in self.slots if slot.alive and slot.incarnation == incarnation), None)

    def wants(self, kind: Kind) -> int:
        """Return how many children of a kind there should be."""
        return kind.count(self)

    def wants_wakeups(self) -> bool:
        """Return whether a child should be woken."""
        return bool(self.pending_wakeups or self.kinds_to_wake)

    def is_started(self) -> bool:
        """Return whether the start is complete.

        True once a worker was READY, or no workers are wanted, and no child is still BOOTING.
        """
        alive = self.alive()
        return (self.ever_ready or (not self.wanted and bool(alive))) and all(
            slot.state is not State.BOOTING for slot in alive
        )

    # -- events

    def registered(self, supervisor: int) -> None:
        """The supervisor has a registration, perhaps a new one."""
        self.supervisor = supervisor

    def lease_lost(self, now: float) -> None:
        """Another supervisor has reclaimed this one's jobs: its children no longer own them."""
        self.supervisor = 0
        for slot in self.alive():
            slot.worn = True
            self.start_stop_sequence(slot, StopReason.LOST, now, grace=self.limits.hurry)
        self.warnings.append(
            "the lease was lost and another supervisor reclaimed this one's jobs: the child processes are replaced under a new registration"
        )

    def database_up(self, now: float) -> None:
        """The supervisor has a database session (again): all children end their back-off."""
        self.database_since = now
        self.kinds_to_wake.update(KINDS)

    def database_down(self) -> None:
        """The supervisor has no database session."""
        self.database_since = None

    def request_wakeups(self, count: int = 1) -> None:
        """There may be work for this many workers.

        If queues have reserved workers, the first idle worker found may serve another queue, so all
        idle workers are woken.
        """
        if self.limits.reserved:
            self.all_idle_called()
        else:
            self.pending_wakeups += count

    def all_idle_called(self) -> None:
        """There may be an unknown amount of work: wake every idle worker."""
        self.pending_wakeups += sum(slot.kind.works for slot in self.alive())

    def gates_changed(self, now: float) -> None:
        """A pause or limit has changed: release claimed, unstarted jobs and wake idle workers."""
        self.offloads = self.offloads._replace(gates_changed_at=now, failed_at=float("-inf"))
        self.kinds_to_wake.add(MAINTENANCE)
        self.all_idle_called()

    def on_load(self, waiting: float, *, idle: bool) -> None:
        """The number of runnable processes per processor was read; `idle`: a worker is idle."""
        self.offloads = self.offloads._replace(load=smoothed_load(self.offloads.load, waiting, idle=idle))

    def rested(self) -> None:
        """A worker has gone idle."""
        self.busy_since = None

    def forked(self, slot: Slot, *, pid: int, incarnation: int, now: float, started: int, jitter: float) -> None:
        """A process fills the slot.

        `jitter` in -1..1 spreads its limits, so that not all children are replaced at the same
        time.
        """
        if slot.forked_at:
            self.respawns += 1
            slot.restarts += 1
        slot.state, slot.since, slot.forked_at = State.BOOTING, now, now
        slot.pid, slot.incarnation, slot.supervisor, slot.generation = (
            pid,
            incarnation,
            self.supervisor,
            self.generation,
        )
        # computed here and not on each read: a wake-up is waiting for that read
        self._alive = tuple(slot for slot in self.slots if slot.alive)
        slot.now, slot.stop_sequence, slot.nudged_claims, slot.rss, slot.worn = (
            CurrentWork(Phase.BOOTING),
            None,
            -1,
            0,
            False,
        )
        slot.hook, slot.stopped_at = 0.0, 0.0
        slot.cancels, slot.untold, slot.held = set(), [], None
        slot.started_at_fork = started
        spread = 1 + self.limits.jitter * jitter
        slot.jobs_limit = self.limits.max_jobs * spread
        slot.age_limit = self.limits.max_age * spread

    def fork_failed(self, slot: Slot, *, now: float, jitter: float) -> None:
        """The kernel refused a new process: let the slot rest and try again."""
        slot.failures += 1
        self._rest(slot, now, jitter)

    def on_message(self, slot: Slot, report: Report, now: float) -> None:
        """A child has sent a message."""
        match report:
            case Ready():
                if slot.state is State.BOOTING:
                    slot.state, slot.since, slot.ready_at = State.READY, now, now
                    self._problems.clear()
                    if self.reloading and slot.kind.works and slot.generation == self.generation:
                        self.reload_answer = ""
                # only workers count: a maintenance process loads no handlers and is READY even if
                # they are broken
                self.ever_ready = self.ever_ready or slot.kind.works
            case MoreWork():
                self.request_wakeups()
            case WentIdle():
                self.rested()
            case HasStores(alone):
                self.stores, self.stores_alone = True, alone
            case Mourns():
                self.mourns = True
            case CancelJob(number, token, job):
                if number < len(self.slots):
                    self.cancel(incarnation=self.slots[number].incarnation, token=token, job=job, now=now)
            case Problem(text):
                if text not in self._problems:  # every worker finds the same broken module
                    self._problems.add(text)
                    self.warnings.append(f"{slot.name}: {text}")

    def on_status(
        self, slot: Slot, *, now_record: CurrentWork | None, started: int, rss: int, now: float, hook: float = 0.0
    ) -> None:
        """The child's status board was read.

        A record that was inconsistent (None) changes nothing.
        """
        if slot.stop_sequence is not None and slot.stop_sequence.why is StopReason.HOOK and hook != slot.hook:
            slot.stop_sequence = None
        slot.hook = hook
        if now_record is not None:
            slot.now = now_record
        if rss:
            slot.rss = rss
        record, stop_sequence = slot.now, slot.stop_sequence
        if stop_sequence is not None and stop_sequence.why in (StopReason.TIMEOUT, StopReason.CANCEL, StopReason.DRAIN):
            # The job has ended; or it waits only for the database to write that, which is no reason
            # to kill the child except in a drain.
            over = (record.token, record.job) != (stop_sequence.token, stop_sequence.job)
            if over or (not record.runs and stop_sequence.why is not StopReason.DRAIN):
                slot.stop_sequence = None
        # Tokens grow: a request about a later claim than the board shows is kept for that claim.
        slot.cancels = {(token, job) for token, job in slot.cancels if token >= record.token}
        if slot.stop_sequence is None and record.phase is Phase.RUNNING and (record.token, record.job) in slot.cancels:
            slot.stop_sequence = StopSequence(StopReason.CANCEL, now, record.token, record.job, grace=self.limits.grace)
        if slot.state is State.READY and not slot.worn and slot.kind.works:
            limits = self.limits
            jobs = started - slot.started_at_fork
            slot.worn = bool(
                (limits.max_jobs and jobs >= slot.jobs_limit)
                or (limits.max_age and now - slot.forked_at >= slot.age_limit)
                or (limits.max_rss and slot.rss >= limits.max_rss)
            )

    def saw_idle(self, slot: Slot, *, idle: bool, claims: int) -> None:
        """The idle flag was read. A wake-up is under way until the child has claimed.

        A stopped process counts as busy: it would keep the wake-up without acting on it.
        """
        slot.idle, slot.claims = idle and not slot.stopped_at and claims != slot.nudged_claims, claims

    def on_held_claim(self, slot: Slot, held: HeldClaim | None) -> None:
        """The status board was read: what the child holds besides its running job, or nothing."""
        slot.held = held

    def on_offload_failed(self, slot: Slot, token: int, *, release: bool, now: float) -> None:
        """A request to release the rest of the claim, or to write its outcomes, was lost or rejected."""
        if release and slot.released == token:
            slot.released = 0
        elif not release and slot.flushed is not None and slot.flushed[0] == token:
            slot.flushed = None
        else:
            return
        self.offloads = self.offloads._replace(failed_at=now)

    def saw_times_idle(self, seen: Mapping[int, tuple[bool, int]], now: float) -> None:
        """The boards of the READY workers were read.

        Args:
            seen: by slot, whether it is idle and how often it has been.
            now: the current time.
        """
        rested = not seen
        for number, (idle, times) in seen.items():
            slot = self.slots[number]
            rested = rested or idle or times != slot.times_idle
            slot.times_idle = times
        if rested:
            self.busy_since = None
        elif self.busy_since is None:
            self.busy_since = now

    def nudged(self, slot: Slot) -> None:
        """The child was woken."""
        slot.nudged_claims, slot.idle = slot.claims, False

    def cancel(self, *, incarnation: int, token: int, job: int, now: float) -> None:
        """Cancel a job that a child holds.

        A running job gets a stop sequence. For a job that has not started, or that runs in a batch,
        the child is only notified: the other jobs of the batch must not be interrupted.
        """
        slot = self.by_incarnation(incarnation)
        if slot is None or (token, job) in slot.cancels:
            return
        slot.cancels.add((token, job))
        if (slot.now.token, slot.now.job) == (token, job) and slot.now.phase is not Phase.TOGETHER:
            if slot.stop_sequence is None and slot.now.phase is Phase.RUNNING:
                slot.stop_sequence = StopSequence(StopReason.CANCEL, now, token, job, grace=self.limits.grace)
        else:
            slot.untold.append((token, job))

    def start_stop_sequence(self, slot: Slot, why: StopReason, now: float, *, grace: float) -> None:
        """Start a stop sequence, unless the current one ends no later."""
        current = slot.stop_sequence
        if current is not None and (
            current.stage is Stage.KILLED or current.since + 2 * current.grace <= now + 2 * grace
        ):
            return
        slot.stop_sequence = StopSequence(why, now, slot.now.token, slot.now.job, grace=grace)

    def dismissed(self, slot: Slot, now: float) -> None:
        """The child's wake pipe is closed."""
        if slot.state in (State.BOOTING, State.READY):
            slot.state, slot.since = State.LEAVING, now

    def stopped(self, slot: Slot, signum: int, now: float) -> None:
        """A signal stopped the child's process.

        The kernel reports nothing more about it until it continues or ends.
        """
        slot.stopped_at = now
        self.warnings.append(
            f"{slot.name}, process {slot.pid}, was stopped by {signal.Signals(signum).name}: between two jobs it is killed "
            f"{self.limits.spawn_timeout:g} s later, unless it goes on; kill -CONT {slot.pid} lets it"
        )

    def continued(self, slot: Slot) -> None:
        """The child's process continues."""
        slot.stopped_at = 0.0
        self.notes.append(f"{slot.name}, process {slot.pid}, goes on")
        if slot.kind.works:
            # it was skipped for work that arrived meanwhile, and perhaps no other worker was idle
            self.request_wakeups()

    def on_exit(self, slot: Slot, exit_: Exit, *, now: float, started: int, jitter: float) -> Death:
        """The process of a slot was reaped. Return the facts about its death."""
        was_ready = slot.ready_at >= slot.forked_at and slot.ready_at > 0
        cause = self._cause(slot, exit_)
        death = Death(
            slot.number, slot.kind.name, slot.pid, slot.incarnation, slot.supervisor, exit_, cause, was_ready, slot.stop_sequence, now,
            now - slot.forked_at,
        )  # fmt: skip
        self.unrecovered.add(slot.incarnation)
        self.deaths[cause] += 1
        finished = started - slot.started_at_fork - (1 if slot.now.job else 0)
        calm = cause in ("left", "worn", "lost", "drain", "quit", "cancel", "timeout")
        if calm or (finished > 0 and now - slot.ready_at >= 0.5):
            slot.failures = 0
        if not calm:
            slot.failures += 1
            self._rest(slot, now, jitter)
        else:
            slot.rest_until = now
        if cause == "handlers" and self.exit_code is None:
            self._handlers_broken(slot)
        if slot.kind.works:
            self.request_wakeups()  # it may have been woken and have died before its claim
        slot.state, slot.since, slot.pid, slot.stop_sequence, slot.worn = State.EMPTY, now, 0, None, False
        self._alive = tuple(slot for slot in self.slots if slot.alive)
        return death

    def on_recovered(self, incarnation: int, now: float) -> None:
        """The jobs of a dead child are settled and released."""
        self.unrecovered.discard(incarnation)
        self.buried_at = now

    def explained(self, slot: Slot, end: End) -> None:
        """The explanation for the last death in the slot is known."""
        slot.last_end = end
        if end.cause not in ("left", "worn"):
            self.ends.append(end)

    def database_given_up(self, now: float) -> None:
        """The database did not answer in `db_retry_max_attempts` attempts.

        Drain as after SIGTERM, but exit with a code other than 0.
        """
        if self.exit_code is None and self.run_state is RunState.SERVING:
            self.exit_code = 69
            self.warnings.append("the database did not answer db_retry_max_attempts times: draining")
            self.enter_state(RunState.DRAINING, now)

    def on_signal(self, signum: int, now: float) -> None:
        """The supervisor received a signal from outside."""
        if signum in (signal.SIGTERM, signal.SIGINT):
            if now - self.last_told < 0.5 and self.run_state is not RunState.SERVING:
                return  # Ctrl-C plus the process manager's SIGTERM, or a key pressed twice, counts as one signal
            self.last_told = now
            self.enter_state(RunState.DRAINING if self.run_state is RunState.SERVING else RunState.FAST_SHUTDOWN, now)
        elif signum == signal.SIGQUIT:
            self.enter_state(RunState.IMMEDIATE_SHUTDOWN, now)
        elif signum == signal.SIGHUP and self.run_state is RunState.SERVING:
            self.generation += 1
            self.reloading, self.reload_answer = True, None
        elif signum == signal.SIGTTIN:
            self.wanted = min(self.wanted + 1, self.limits.max_workers)
            self.notes.append(f"{self.wanted} workers wanted")
        elif signum == signal.SIGTTOU:
            self.wanted = max(self.wanted - 1, 0)
            self.notes.append(f"{self.wanted} workers wanted")

    def enter_state(self, run_state: RunState, now: float) -> None:
        """Change the run state, never backward."""
        if run_state.value > self.run_state.value:
            self.run_state, self.course_since = run_state, now

    # -- helpers

    def _cause(self, slot: Slot, exit_: Exit) -> str:
        if slot.stop_sequence is not None and slot.stop_sequence.stage in (Stage.TERMED, Stage.KILLED):
            return slot.stop_sequence.why.value
        if exit_.code == EXIT_LEFT:
            return "left" if slot.state is State.LEAVING or self.supervisor == 0 else "deserted"
        if exit_.code == EXIT_WORN:
            return "worn"
        if exit_.code == EXIT_HANDLERS and slot.ready_at < slot.forked_at:
            return "handlers"
        if exit_.oom:
            return "oom"
        return "signal" if exit_.signal else "exit"

    def _handlers_broken(self, slot: Slot) -> None:
        if not self.ever_ready:
            self.exit_code = 78
            self.warnings.append("the handlers do not load, and no worker of this supervisor was ever ready: stopping")
        elif self.reloading:
            # A half-finished `git pull` must not stop a fleet: the old children count as current
            # again.
            self.reloading = False
            for other in self.slots:
                other.generation = self.generation
            self.reload_answer = "the new code does not load, the old workers stay: " + "; ".join(
                sorted(self._problems)
            )
            self.warnings.append("the new code does not load: the old workers continue")
        else:
            self.warnings.append(f"the handlers do not load any more: {slot.name} waits and is restarted")

    def _rest(self, slot: Slot, now: float, jitter: float) -> None:
        limits = self.limits
        delay = min(limits.respawn_initial * 2 ** min(slot.failures - 1, 30), limits.respawn_max)
        slot.rest_until = now + delay * (1 + 0.2 * jitter)
