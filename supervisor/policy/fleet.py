"""What the parent knows of its children: bookkeeping only.

Nothing here makes a system call, reads a clock or decides anything: the loop tells it what happened and when (`heard`, `exited`, `told`),
`plan` reads it. So every policy can be tested as a fleet, a number for now, and a list of actions.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from enum import Enum
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.kinds import KINDS, RESETTER, WEB, WORKER, Kind
from jobherd.supervisor.policy.slot import Death, End, Exit, Slot, Stage, State, StopReason, StopSequence
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


class RunState(Enum):
    """What the supervisor is about. It only ever moves down this list."""

    SERVING = 1
    DRAINING = 2
    """Told once to stop: claim nothing more, finish what runs within the drain timeout."""
    FAST_SHUTDOWN = 3
    """Told twice: hand back what runs, and leave within a second or two."""
    IMMEDIATE_SHUTDOWN = 4
    """Told to leave now: every child is killed."""


PATIENCE_IN_A_CROWD = 1.0
"""The longest, in seconds, that a job may run in front of others because it may only be waiting for a processor."""
LATEST = 1.1
"""The part of that patience for which an outcome may wait: with the default, 44 of the 50 ms after which it is to be seen."""
BARELY = 0.25
"""The part of it that a job runs at least, before it is taken for the reason."""
RELIEF = 0.5
"""Seconds for which claims are relieved once gates have changed: those that were on their way then have arrived."""
RELIEVE_AGAIN = 1.0
"""Seconds before a claim whose relief was lost is relieved again: each try is a look and two letters, and what refuses them may last."""


def late_at(record: CurrentWork, unwritten: float, patience: float) -> float:
    """Return when the job of that record has run for too long in front of others: after `patience`.

    unwritten: since when an outcome of its claim waits to be written, 0 if none does. Several jobs that are each shorter than `patience` may
    keep one waiting for longer than a single one could. A child that meets no surprise writes it before that by itself, so a job that
    has only just started is left alone.
    """
    at = record.started + patience
    return min(at, max(unwritten + LATEST * patience, record.started + BARELY * patience)) if unwritten else at


class Fleet:
    """All slots, and what is known beside them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        workers = [Slot(number, WORKER) for number in range(limits.max_workers + 1)]  # one spare, to replace the last one without a gap
        others = [Slot(limits.max_workers + 1 + place, kind) for place, kind in enumerate(kind for kind in KINDS if kind is not WORKER)]
        self.slots = [*workers, *others]
        self._alive: tuple[Slot, ...] = ()
        self.run_state = RunState.SERVING
        self.course_since = 0.0
        self.wanted = limits.workers
        self.lease_deadline = float("inf")
        """Monotonic time at which our lease may have lapsed."""
        self.supervisor = 0
        """Our registration; 0: none, and nobody is forked."""
        self.database_since: float | None = None
        """Since when the parent has its session; None: it has none."""
        self.ever_ready = False
        """Some worker of this run has loaded its handlers."""
        self.incarnations = 0
        self.generation = 0
        self.pending_wakeups = 0
        """How many idle children should be nudged."""
        self.keeper_called = False
        self.resetter_called = False
        self.mourns = False
        """A worker has `on_death` hooks."""
        self.stores = False
        """Some worker works a table of the application's own."""
        self.stores_alone = False
        """The workers claim nothing from the queue."""
        self.all_called = False
        self.busy_since: float | None = None
        """Since when no worker has been idle, as far as we have looked; None: one may be."""
        self.crowd = 1.0
        """How many processes want each processor while no worker is idle: so much longer takes what a job does in its own time."""
        self.relieve_until = float("-inf")
        self.relieve_again_at = 0.0
        """Before that nobody is relieved or helped: a letter about it was lost or refused, and what has stopped it may stop the next as well."""
        """Until then nobody holds claimed jobs behind one that runs."""
        self.deaths_open = 0
        """Deaths whose jobs are not given back yet."""
        self.buried_at = 0.0
        """When the last death was settled."""
        self.exit_code: int | None = None
        self.deaths: Counter[str] = Counter()
        self.ends: deque[End] = deque(maxlen=10)
        """The latest that nobody had asked for, oldest first."""
        self.respawns = 0
        self.last_told = float("-inf")
        self.reloading = False
        self.reload_answer: str | None = None
        """Whether the code of the latest reload loads: empty if a worker with it became ready, else why not; None: not known yet."""
        self.notes: list[str] = []
        """Good news for the log, taken by the loop."""
        self.warnings: list[str] = []
        """Bad news for the log."""
        self._problems: set[str] = set()

    # -- looking ----------------------------------------------------------------------------------------------------

    def workers(self) -> Iterator[Slot]:
        """The slots whose children claim jobs."""
        return (slot for slot in self.slots if slot.kind.works)

    def alive(self) -> tuple[Slot, ...]:
        """The slots that a process fills."""
        return self._alive

    def by_incarnation(self, incarnation: int) -> Slot | None:
        """The slot of that child, if it still lives."""
        return next((slot for slot in self.slots if slot.alive and slot.incarnation == incarnation), None)

    def wants(self, kind: Kind) -> int:
        """How many children of a kind there should be."""
        if kind is WEB:
            return int(self.limits.web)
        if kind is RESETTER:
            return int(self.stores)
        return self.wanted if kind.count is None else kind.count

    def is_started(self) -> bool:
        """Whether the start is over: somebody works, or there is nobody who should, and no child is still on its way."""
        alive = self.alive()
        return (self.ever_ready or (not self.wanted and bool(alive))) and all(slot.state is not State.BOOTING for slot in alive)

    # -- noting -----------------------------------------------------------------------------------------------------

    def registered(self, supervisor: int) -> None:
        """We have a registration (or a new one)."""
        self.supervisor = supervisor

    def lease_lost(self, now: float) -> None:
        """Somebody has reclaimed us: what our children run is not ours any more."""
        self.supervisor = 0
        for slot in self.alive():
            slot.worn = True
            self.start_stop_sequence(slot, StopReason.LOST, now, grace=self.limits.hurry)
        self.warnings.append("the lease was lost: somebody has reclaimed our jobs; children are replaced under a new registration")

    def database_up(self, now: float) -> None:
        """The parent has its session (again): every back-off of a child ends."""
        self.database_since = now
        self.all_called = True

    def database_down(self) -> None:
        """The parent has no session."""
        self.database_since = None

    def request_wakeups(self, count: int = 1) -> None:
        """There may be work for so many. Where some serve one queue alone, the first one to be found may be the wrong one: all are called."""
        if self.limits.reserved:
            self.all_idle_called()
        else:
            self.pending_wakeups += count

    def all_idle_called(self) -> None:
        """There may be work, and we do not know for how many: for each that is idle."""
        self.pending_wakeups += sum(slot.kind.works for slot in self.alive())

    def gates_changed(self, now: float) -> None:
        """Somebody has paused, resumed or capped something: what is claimed and not started goes back, and who is idle looks again."""
        self.relieve_until, self.relieve_again_at = now + RELIEF, 0.0
        self.keeper_called = True
        self.all_idle_called()

    def patience(self, now: float) -> float:
        """Seconds that a job may run in front of others that are claimed with it."""
        if now < self.relieve_until:
            return 0.0
        if not self.limits.hold:
            return float("inf")
        return max(self.limits.patience, min(self.limits.patience * self.crowd, PATIENCE_IN_A_CROWD))

    def saw_crowd(self, waiting: float, *, idle: bool) -> None:
        """It was looked how many processes want each processor, and whether any worker is idle.

        One look tells little: a crowd is believed at once, and its end only by and by; but who is idle could run the jobs now.
        """
        self.crowd = 1.0 if idle else max(waiting, 1.0 + (self.crowd - 1.0) * 0.8)

    def rested(self) -> None:
        """Some worker has gone idle."""
        self.busy_since = None

    def forked(self, slot: Slot, *, pid: int, incarnation: int, now: float, started: int, jitter: float) -> None:
        """A process fills the slot. `jitter` in -1..1 spreads its limits, so that not all are replaced in one moment."""
        if slot.forked_at:
            self.respawns += 1
            slot.restarts += 1
        slot.state, slot.since, slot.forked_at = State.BOOTING, now, now
        slot.pid, slot.incarnation, slot.supervisor, slot.generation = pid, incarnation, self.supervisor, self.generation
        self._alive = tuple(slot for slot in self.slots if slot.alive)  # counted here, not at each look: a wake-up is waiting
        slot.now, slot.stop_sequence, slot.nudged_claims, slot.rss, slot.worn = CurrentWork(Phase.BOOTING), None, -1, 0, False
        slot.hook, slot.stopped_at = 0.0, 0.0
        slot.cancels, slot.untold, slot.late, slot.owing = set(), [], None, None
        slot.started_at_fork = started
        spread = 1 + self.limits.jitter * jitter
        slot.jobs_limit = self.limits.max_jobs * spread
        slot.age_limit = self.limits.max_age * spread

    def fork_failed(self, slot: Slot, *, now: float, jitter: float) -> None:
        """The system refused a process; rest, and try again."""
        slot.failures += 1
        self._rest(slot, now, jitter)

    def on_message(self, slot: Slot, report: Report, now: float) -> None:
        """A child said something."""
        match report:
            case Ready():
                if slot.state is State.BOOTING:
                    slot.state, slot.since, slot.ready_at = State.READY, now, now
                    self._problems.clear()
                    if self.reloading and slot.kind.works and slot.generation == self.generation:
                        self.reload_answer = ""
                self.ever_ready = self.ever_ready or slot.kind.works  # a keeper loads no handlers: it is ready whatever they are
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

    def on_status(self, slot: Slot, *, now_record: CurrentWork | None, started: int, rss: int, now: float, hook: float = 0.0) -> None:
        """Its board was looked at. A record that is not believed changes nothing."""
        if slot.stop_sequence is not None and slot.stop_sequence.why is StopReason.HOOK and hook != slot.hook:
            slot.stop_sequence = None
        slot.hook = hook
        if now_record is not None:
            slot.now = now_record
        if rss:
            slot.rss = rss
        record, stop_sequence = slot.now, slot.stop_sequence
        if stop_sequence is not None and stop_sequence.why in (StopReason.TIMEOUT, StopReason.CANCEL, StopReason.DRAIN):
            # Its job has ended; or it only waits for a database to write that it has, for which nobody is killed but by a drain.
            over = (record.token, record.job) != (stop_sequence.token, stop_sequence.job)
            if over or (not record.runs and stop_sequence.why is not StopReason.DRAIN):
                slot.stop_sequence = None
        # Tokens grow: what is asked of a later claim than the board shows yet is kept for that one.
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
        """Its idle flag was looked at. A nudge is on its way until the child has claimed for it; one that is stopped would keep it to itself."""
        slot.idle, slot.claims = idle and not slot.stopped_at and claims != slot.nudged_claims, claims

    def saw_held(
        self, slot: Slot, record: CurrentWork, now: float, *, others: bool = True, unwritten: float = 0.0, before: bool = False
    ) -> None:
        """It holds more than the job that runs; it was looked at.

        others: jobs of the same claim. unwritten: as `late_at` takes it. before: the claim before this one, which is not sure to be written.
        Where there are no others nothing is given back: the row of the claim may be locked by the transaction of its job, and who gives back waits.
        What may only be waiting for a processor keeps the others for a while; the outcomes in front of it wait no longer than ever.
        """
        slot.late = slot.owing = None
        running = record.token, record.job
        if not record.runs or record.token == slot.relieved or now < self.relieve_again_at:
            return
        if others and now >= late_at(record, unwritten, self.patience(now)):
            slot.late = running
        elif (
            (unwritten or before)
            and self.limits.hold
            and running != slot.helped
            and now >= late_at(record, unwritten, self.limits.patience)
        ):
            slot.owing = running

    def not_relieved(self, slot: Slot, token: int, now: float) -> None:
        """The letter that should have relieved it was lost or refused: another one, once the database may be there again."""
        if slot.relieved == token:
            slot.relieved, self.relieve_again_at = 0, now + RELIEVE_AGAIN

    def not_helped(self, slot: Slot, token: int, now: float) -> None:
        """The letter that should have written its outcomes was lost or refused: another one, as for a relief."""
        if slot.helped is not None and slot.helped[0] == token:
            slot.helped, self.relieve_again_at = None, now + RELIEVE_AGAIN

    def saw_times_idle(self, seen: Mapping[int, tuple[bool, int]], now: float) -> None:
        """The boards of the READY workers were looked at: by slot, whether it is idle, and how often it has been."""
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
        """A nudge was sent."""
        slot.nudged_claims, slot.idle = slot.claims, False

    def cancel(self, *, incarnation: int, token: int, job: int, now: float) -> None:
        """Somebody asked to cancel a job one of our children holds: one that has not started is only told, one that runs climbs.

        One that runs together with others is only told too: its neighbours must not be torn out for it.
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
        """Put a child on the ladder, unless the one it is on ends no later."""
        current = slot.stop_sequence
        if current is not None and (current.stage is Stage.KILLED or current.since + 2 * current.grace <= now + 2 * grace):
            return
        slot.stop_sequence = StopSequence(why, now, slot.now.token, slot.now.job, grace=grace)

    def dismissed(self, slot: Slot, now: float) -> None:
        """Its wake pipe is closed."""
        if slot.state in (State.BOOTING, State.READY):
            slot.state, slot.since = State.LEAVING, now

    def stopped(self, slot: Slot, signum: int, now: float) -> None:
        """Somebody has stopped its process; the kernel tells no more of it until it goes on or ends."""
        slot.stopped_at = now
        self.warnings.append(
            f"{slot.name}, process {slot.pid}, was stopped by {signal.Signals(signum).name}: between two jobs it is killed "
            f"{self.limits.spawn_timeout:g} s later, unless it goes on; kill -CONT {slot.pid} lets it"
        )

    def continued(self, slot: Slot) -> None:
        """Its process goes on."""
        slot.stopped_at = 0.0
        self.notes.append(f"{slot.name}, process {slot.pid}, goes on")
        if slot.kind.works:
            self.request_wakeups()  # for what came meanwhile it was passed over, and nobody else may have been idle

    def on_exit(self, slot: Slot, exit_: Exit, *, now: float, started: int, jitter: float) -> Death:
        """The process of a slot is reaped. Returns what is left of it."""
        was_ready = slot.ready_at >= slot.forked_at and slot.ready_at > 0
        cause = self._cause(slot, exit_)
        death = Death(
            slot.number, slot.kind.name, slot.pid, slot.incarnation, slot.supervisor, exit_, cause, was_ready, slot.stop_sequence, now,
            now - slot.forked_at,
        )  # fmt: skip
        self.deaths_open += 1
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
            self.request_wakeups()  # it may have been nudged and have died before its claim
        slot.state, slot.since, slot.pid, slot.stop_sequence, slot.worn = State.EMPTY, now, 0, None, False
        self._alive = tuple(slot for slot in self.slots if slot.alive)
        return death

    def on_recovered(self, now: float) -> None:
        """The jobs of a dead child are where they belong."""
        self.deaths_open -= 1
        self.buried_at = now

    def explained(self, slot: Slot, end: End) -> None:
        """It is known how the last child of a slot ended."""
        slot.last_end = end
        if end.cause not in ("left", "worn"):
            self.ends.append(end)

    def database_given_up(self, now: float) -> None:
        """The database did not answer as often as `db_retry_max_attempts` allows: leave, as after a TERM, but not with 0."""
        if self.exit_code is None and self.run_state is RunState.SERVING:
            self.exit_code = 69
            self.warnings.append("the database was tried db_retry_max_attempts times: leaving")
            self.enter_state(RunState.DRAINING, now)

    def on_signal(self, signum: int, now: float) -> None:
        """The parent got a signal from outside."""
        if signum in (signal.SIGTERM, signal.SIGINT):
            if now - self.last_told < 0.5 and self.run_state is not RunState.SERVING:
                return  # Ctrl-C and the process manager's TERM, or a nervous hand: one word
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
        """Change course; never back."""
        if run_state.value > self.run_state.value:
            self.run_state, self.course_since = run_state, now

    # -- parts ------------------------------------------------------------------------------------------------------

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
            self.warnings.append("the handlers do not load, and no child of this run was ever ready: stopping")
        elif self.reloading:
            # Half a `git pull` must not stop a fleet: the old children count as current again.
            self.reloading = False
            for other in self.slots:
                other.generation = self.generation
            self.reload_answer = "the new code does not load, the old workers stay: " + "; ".join(sorted(self._problems))
            self.warnings.append("the new code does not load: the old children stay in place")
        else:
            self.warnings.append(f"the handlers do not load any more: {slot.name} rests and is tried again")

    def _rest(self, slot: Slot, now: float, jitter: float) -> None:
        limits = self.limits
        delay = min(limits.respawn_initial * 2 ** min(slot.failures - 1, 30), limits.respawn_max)
        slot.rest_until = now + delay * (1 + 0.2 * jitter)
