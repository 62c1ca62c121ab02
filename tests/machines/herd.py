"""Drives the supervisor's slot table and plan with simulated child processes.

These boot, work, sleep, hang, crash and disobey. There is no process and no clock. The world does what
`loop.py` and `children.py` do: it notifies the slot table of events, reads the child processes as often as the loop
does, requests a plan at the time that the last plan named, and carries it out. It has the true state, which the
slot table reads only at times. `World.check` and the assertions at each action check the invariants.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field

from jobherd.supervisor.policy.actions import NEVER, Dismiss, Finish, Fork, Interrupt, Kill, Offload, WakeChild
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.child_kinds import GATEWAY, MAINTENANCE, RESETTER, WORKER
from jobherd.supervisor.policy.exits import death_of, restart_at
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.plan import plan
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.shutdown import PATIENCE_WITHOUT_DATABASE
from jobherd.supervisor.policy.slot import HeldClaim, Slot, State
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.policy.state_changes import apply
from jobherd.supervisor.policy.wakeups import wakeups, wants_notify
from jobherd.supervisor.process.board_reader import LOOK, LOOK_IDLE
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import (
    EXIT_HANDLERS,
    EXIT_RECYCLE,
    EXIT_REQUESTED,
    CancelJob,
    HasDeathHooks,
    HasStores,
    MembersEnded,
    MoreWork,
    Problem,
    Ready,
    WentIdle,
)
from jobherd.workers.run.hooks import LIMIT as HOOK
from tests.supervisor.policy.story import without_writing

LIMITS = {
    "workers": 3, "max_workers": 5, "web": False, "has_gateway": True, "lease": 15.0, "grace": 2.0, "drain_timeout": 20.0, "spawn_timeout": 4.0,
    "respawn_initial": 0.1, "respawn_max": 6.0, "max_rss": 1000, "max_jobs": 40, "claim_window": 0.05,
}  # fmt: skip
EPS = 1e-6
TURN = 1.0
"""Longest time between two turns of the loop, in seconds."""
CALM = {"requested", "recycled", "claim_lost", "drain", "quit", "cancel", "timeout"}
DEADLINES = (0.1, 1.0, 5.0, 20.0, NEVER)
TIMES = (0.0, 0.01, 0.1, 0.26, 0.5, 1.0, 2.1, 4.1, 7.0)
SIGNALS = (signal.SIGTTIN, signal.SIGTTOU, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGHUP)


@dataclass
class Child:
    """The true state of a child process."""

    slot: Slot
    pid: int
    incarnation: int
    born: float
    ready: bool = False
    record: CurrentWork = field(default_factory=lambda: CurrentWork(Phase.BOOTING))
    idle: bool = False
    nudged: bool = False
    """A wake is in its pipe."""
    exclusive: bool = False
    dismissed: float | None = None
    killed: bool = False
    end: Exit | None = None
    """How it has ended, while it is not reaped."""
    since: float = 0.0
    """When the state in its record began."""
    cancelled: float | None = None
    """When a cancellation of its running job was requested."""
    hook: float = 0.0
    """When its running hook should have ended; 0: it runs none."""
    stopped: float = 0.0
    """When its process was stopped; 0: it is not stopped."""


class World:
    """A supervisor without its system calls.

    Each method whose name begins with `move_` is an event that may happen. `n` selects its variant.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slot_table = SlotTable(Limits(**LIMITS))
        self.children: dict[int, Child] = {}
        self.pids = iter(range(2, 10**9))
        self.tokens = iter(range(1, 10**9))
        count = len(self.slot_table.slots)
        self.started, self.claims, self.times_idle = [0] * count, [0] * count, [0] * count
        self.rest_until = [0.0] * count
        self.in_a_row = [0] * count
        """By slot: the number of consecutive deaths of child processes that were never ready."""
        self.plan_at = self.look_at = 0.0
        self.beat = 0
        self.lease_deadline = NEVER
        self.refusing = False
        self.finished: int | None = None
        self.told_at: float | None = None
        """When the supervisor first received a signal to exit."""
        self.seen: Counter[str] = Counter()
        """Counts of events. An invariant about an event that never happens is not tested."""
        self.move_lease(0)
        self.move_database(0)
        self.turn()

    # -- the loop

    def turn(self) -> None:
        """Run one turn of the loop: deaths, status boards, the plan, and its actions."""
        if self.finished is not None:
            return
        self.seen["turns"] += 1
        for child in list(self.children.values()):
            if child.end is not None:
                self.reap(child, child.end)
        if self.now >= self.plan_at:
            self.look_at = 0.0
        self.look()
        before = self.slot_table.run_state
        for _ in range(len(self.slot_table.slots) + 3):
            resting = self.plan()
            if resting or self.finished is not None:
                break
        else:
            raise AssertionError("a plan follows from a plan without end, and no time passes: a busy loop")
        assert self.slot_table.run_state.value >= before.value, "the run state never goes back"
        self.check()

    def look(self) -> None:
        if self.slot_table.pending_wakeups:
            self.look_who_is_idle()
        self.slot_table.lease_deadline = self.lease_deadline if self.slot_table.supervisor else NEVER
        if self.now < self.look_at:
            return
        self.look_at = self.now + LOOK
        ready = [
            child for child in self.children.values() if child.slot.kind.claims and child.slot.state is State.READY
        ]
        self.slot_table.on_idle_counts(
            {child.slot.number: (child.idle, self.times_idle[child.slot.number]) for child in ready}, self.now
        )
        assert wants_notify(self.slot_table, self.now) or not any(child.idle for child in ready), (
            "a child process sleeps that no producer would wake"
        )
        for child in self.children.values():
            slot = child.slot
            self.slot_table.on_status(
                slot,
                work=child.record,
                started=self.started[slot.number],
                rss=0,
                hook=child.hook,
                exclusive=bool(child.record.job) and child.exclusive,
            )

    def look_who_is_idle(self) -> None:
        for child in self.children.values():
            if child.slot.state is State.READY and child.slot.kind.claims:
                self.slot_table.on_idle_flag(child.slot, idle=child.idle, claims=self.claims[child.slot.number])

    def next_look(self) -> float:
        if any(slot.seen.work.job or slot.sent.stop for slot in self.slot_table.alive()):
            return self.look_at
        return (
            self.look_at + LOOK_IDLE - LOOK
            if any(slot.state is State.READY for slot in self.slot_table.alive())
            else NEVER
        )

    def plan(self) -> bool:
        """Make one plan and carry it out. Return whether nothing is left to do at this time."""
        slot_table = self.slot_table
        calls, everybody = slot_table.pending_wakeups, WORKER in slot_table.kinds_to_wake
        sleeping = [
            child
            for child in self.children.values()
            if child.slot.kind.claims
            and child.ready
            and child.idle
            and not child.nudged
            and not child.stopped
            and child.slot.state is State.READY
        ]
        # A copy of the slot table costs more than a plan, so only some plans are checked for writes.
        self.seen["plans"] += 1
        checked = self.seen["plans"] % 10 == 0
        todo = without_writing(plan, slot_table, self.now) if checked else plan(slot_table, self.now)
        apply(slot_table, todo.state_changes)
        self.plan_at = todo.wake_at
        woken = 0
        for action in todo.actions:
            self.do(action)
        wakes = without_writing(wakeups, slot_table) if checked else wakeups(slot_table)
        apply(slot_table, wakes.state_changes)
        for action in wakes.actions:
            woken += action.slot.kind.works
            self.do(action)
        starved = [
            child
            for child in sleeping
            if not child.nudged and child.slot.state is State.READY and child.slot.sent.stop is None
        ]
        workers = [child for child in starved if child.slot.kind.works]
        assert not workers or (calls <= woken and not everybody), (
            f"{calls} requests to wake, {woken} wakes, and {workers[0].slot.name} still sleeps"
        )
        assert not calls or workers == starved, "remote workers wait, there is work, and the gateway still sleeps"
        if todo.actions or wakes.actions:
            return False
        assert todo.wake_at > self.now, "nothing to do, and no time to wait for: a busy loop"
        return True

    def do(self, action: object) -> None:
        """Carry out one action, and check that it is allowed."""
        slot = getattr(action, "slot", None)
        why = f" {slot.sent.stop.why.value}" if isinstance(action, Kill) and slot.sent.stop else ""
        self.seen[type(action).__name__ + why] += 1
        if isinstance(action, Finish):
            assert not self.children, "the supervisor exits while child processes remain"
            self.finished = action.code
            return
        if isinstance(action, Fork):
            self.fork(action.slot, action.reserved)
            return
        slot = action.slot
        assert slot.number in self.children, f"{action} is for a slot without a child process"
        child = self.children[slot.number]
        match action:
            case WakeChild():
                assert slot.state in (State.READY, State.BOOTING), "an exiting child process is woken"
                child.nudged = True
            case Dismiss():
                assert child.dismissed is None, "dismissed twice"
                self.check_dismissal(slot)
                child.dismissed = self.now
            case Interrupt():
                assert not child.killed, "a dead child process is interrupted"
            case Kill(_, signum):
                assert not child.killed, "killed twice"
                assert slot.sent.stop is not None, "killed without a reason"
                if signum is signal.SIGKILL:
                    child.killed, child.end = True, Exit(None, signum)
            case Offload(_, token):
                assert token, "an offload of no claim"

    def fork(self, slot: Slot, reserved: str) -> None:
        slot_table = self.slot_table
        assert slot.number not in self.children, "two child processes in one slot"
        assert slot_table.run_state is RunState.SERVING, "a fork during a drain or shutdown"
        assert slot_table.supervisor, "a fork without a registration"
        assert self.now >= self.rest_until[slot.number], "a fork before the respawn delay has passed"
        here = [other for other in slot_table.slots if other.kind is slot.kind and other.is_booting_or_ready]
        outdated = any(other.sent.recycle or other.process.generation < slot_table.generation for other in here)
        assert len(here) < slot_table.wants(slot.kind) + (slot.kind is WORKER and outdated), (
            "more child processes than wanted"
        )
        if self.refusing:
            slot_table.on_fork_failed(slot, restart_at(slot_table.limits, slot.failures + 1, self.now, 0.0))
            self.rest_until[slot.number] = slot.rest_until
            assert slot.rest_until > self.now, "a failed fork must be followed by a delay"
            return
        slot_table.incarnations += 1
        pid = next(self.pids)
        slot_table.on_fork(
            slot,
            pid=pid,
            incarnation=slot_table.incarnations,
            now=self.now,
            started=self.started[slot.number],
            jitter=0.0,
            reserved=reserved,
        )
        self.children[slot.number] = Child(slot, pid, slot_table.incarnations, self.now, since=self.now)

    def reap(self, child: Child, end: Exit) -> None:
        """Report a dead child process to the slot table, and check its respawn delay."""
        slot, limits = child.slot, self.slot_table.limits
        del self.children[slot.number]
        started = self.started[slot.number]
        death = death_of(self.slot_table, slot, end, work=child.record, now=self.now, started=started, jitter=0.0)
        self.slot_table.on_exit(slot, death)
        self.rest_until[slot.number] = slot.rest_until
        rest = slot.rest_until - self.now
        self.seen[f"death: {death.cause}"] += 1
        if death.cause in CALM:
            self.in_a_row[slot.number] = 0
            assert rest <= EPS, "a child process that exited in order has a respawn delay"
        else:
            self.in_a_row[slot.number] = 0 if child.ready else self.in_a_row[slot.number] + 1
            least = limits.respawn_initial * 2 ** min(max(self.in_a_row[slot.number] - 1, 0), 30)
            assert min(least, limits.respawn_max) - EPS <= rest <= limits.respawn_max + EPS, (
                f"a respawn delay of {rest:g} s after {death.cause}"
            )

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a turn whenever the loop would make one."""
        until = self.now + seconds
        while self.finished is None:
            self.now = max(self.now, min(self.plan_at, self.next_look(), self.now + TURN, until))
            if self.now >= until:
                break
            self.turn()
        self.turn()

    # -- invariants

    def check(self) -> None:
        """Check the invariants after each turn."""
        slot_table, limits = self.slot_table, self.slot_table.limits
        assert {slot.number for slot in slot_table.alive()} == self.children.keys(), (
            "the slot table and the world differ"
        )
        for child in self.children.values():
            slot = child.slot
            assert (slot.process.pid, slot.process.incarnation) == (child.pid, child.incarnation), (
                "the slot table mistakes it for another child process"
            )
            if child.killed:
                continue
            record = child.record
            if record.runs and record.deadline < NEVER:
                # The slot table may read it late, but not later than the stop sequence lasts.
                end = max(record.deadline + 2 * limits.grace, child.since + LOOK_IDLE)
                assert self.now < end + EPS, f"{slot.name} runs {self.now - record.deadline:g} s past its deadline"
            if record.runs and child.cancelled is not None:
                # If its deadline passes just then, the stop sequence starts again.
                assert self.now < child.cancelled + 3 * limits.grace + LOOK_IDLE + EPS, (
                    f"{slot.name} still runs its job after a cancellation"
                )
            if child.hook:
                # Its deadline may pass just then, or a cancellation may start and end.
                late = self.now - child.hook
                assert late < 3 * limits.grace + LOOK_IDLE + EPS, f"{slot.name} runs a hook {late:g} s after its time"
            if slot_table.run_state is RunState.DRAINING and slot.kind.drains:
                late = self.now - slot_table.state_since - limits.drain_timeout
                assert late < 4 * limits.grace + LOOK_IDLE + EPS, (
                    f"{slot.name} still exists {late:g} s after the end of the drain"
                )
            if record.runs and child.exclusive and slot_table.supervisor:
                assert self.now < self.lease_deadline, f"{slot.name} runs an exclusive job past the lease"
            if not child.ready and child.dismissed is None and slot_table.database_since is not None:
                waited = self.now - max(child.born, slot_table.database_since)
                assert waited < limits.spawn_timeout + EPS, f"{slot.name} boots for longer than spawn_timeout"
            if child.stopped and not record.runs:
                waited = self.now - max(child.stopped, child.since)
                assert waited < limits.spawn_timeout + LOOK_IDLE + EPS, f"{slot.name} is stopped and keeps its slot"
            if (
                child.dismissed is not None
                and not record.job
                and (slot_table.database_since is not None or not slot.kind.works)
            ):
                since = (slot_table.database_since or 0.0) if slot.kind.works else 0.0
                waited = self.now - max(child.dismissed, child.since, since)
                most = limits.spawn_timeout + (0.0 if slot.kind.works or not slot.kind.drains else limits.drain_timeout)
                assert waited < most + LOOK_IDLE + EPS, f"{slot.name} was dismissed and does not exit"
            assert slot_table.run_state is not RunState.IMMEDIATE_SHUTDOWN, f"{slot.name} outlives a QUIT"

    def check_dismissal(self, slot: Slot) -> None:
        """Check that replacing old workers never leaves fewer ready workers than wanted."""
        slot_table = self.slot_table
        if slot_table.run_state is not RunState.SERVING or slot_table.exit_code is not None or slot.kind is not WORKER:
            return
        if slot.sent.recycle or slot.process.generation < slot_table.generation:
            ready = sum(other.kind is WORKER and other.state is State.READY for other in slot_table.slots)
            was_ready = self.children[slot.number].ready
            assert not was_ready or ready >= slot_table.wants(WORKER), "replaced before its successor was ready"

    # -- moves

    def one(self, n: int, *, working: bool = False) -> Child | None:
        """Return the child process of a move: any living one, or a ready worker."""
        found = [child for child in self.children.values() if child.end is None and not child.stopped]
        if working:
            found = [child for child in found if child.ready and child.slot.kind.works]
        return found[n % len(found)] if found else None

    def move_time(self, n: int) -> None:
        self.pass_time(TIMES[n % len(TIMES)])

    def move_turn(self, _n: int) -> None:
        self.turn()

    def move_ready(self, n: int) -> None:
        found = [
            child for child in self.children.values() if child.end is None and not child.ready and not child.stopped
        ]
        if found:
            child = found[n % len(found)]
            child.ready, child.record, child.since = True, CurrentWork(Phase.IDLE, child.incarnation), self.now
            self.slot_table.on_message(child.slot, Ready(child.incarnation, child.pid), self.now)

    def move_start(self, n: int) -> None:
        """A worker claims and starts a job."""
        child = self.one(n, working=True)
        if (
            child is None
            or child.record.job
            or child.dismissed is not None
            or self.slot_table.run_state is not RunState.SERVING
        ):
            return
        number = child.slot.number
        self.claims[number] += 1
        self.started[number] += 1
        child.idle = child.nudged = False
        child.since, child.cancelled, child.hook = self.now, None, 0.0
        child.exclusive = n % 5 == 0 and self.now < self.lease_deadline - self.slot_table.limits.lease / 5
        phase = Phase.TOGETHER if n % 7 == 0 else Phase.RUNNING
        deadline = self.now + DEADLINES[n % len(DEADLINES)]
        child.record = CurrentWork(
            phase, child.incarnation, next(self.tokens), n % 9 + 1, 1, 1, 5, 0, self.now, deadline
        )

    def move_next(self, n: int) -> None:
        """A worker finishes a job and starts the next one of its claim."""
        child = self.one(n, working=True)
        if child is not None and child.record.runs and self.slot_table.run_state is RunState.SERVING:
            self.started[child.slot.number] += 1
            child.since, child.cancelled, child.hook = self.now, None, 0.0
            deadline = self.now + DEADLINES[n // 3 % len(DEADLINES)]
            child.record = child.record._replace(job=child.record.job + 1, started=self.now, deadline=deadline)

    def move_settle(self, n: int) -> None:
        """A worker finishes its job and cannot record the outcome yet."""
        child = self.one(n, working=True)
        if child is not None and child.record.runs:
            child.record, child.since, child.cancelled = child.record._replace(phase=Phase.SETTLING), self.now, None

    def move_hook(self, n: int) -> None:
        """A worker starts a hook that counts toward no job's time, or ends one."""
        child = self.one(n, working=True)
        if child is not None and not child.idle:
            child.hook = 0.0 if child.hook and n % 3 == 0 else child.hook or self.now + HOOK

    def move_idle(self, n: int) -> None:
        """A worker claims, finds no job, and sleeps."""
        child = self.one(n, working=True)
        if child is None or child.idle or child.dismissed is not None:
            return
        number = child.slot.number
        self.claims[number] += 1
        self.times_idle[number] += 1
        child.idle, child.nudged, child.since, child.cancelled, child.hook = True, False, self.now, None, 0.0
        child.record = CurrentWork(Phase.IDLE, child.incarnation)
        if n % 2:
            self.slot_table.on_message(child.slot, WentIdle(), self.now)

    def move_wait(self, n: int) -> None:
        """A remote worker waits at the gateway and its claim finds no job, or no remote worker waits any more."""
        for child in self.children.values():
            if child.slot.kind is GATEWAY and child.ready and child.end is None and not child.stopped:
                number = child.slot.number
                self.claims[number] += 1
                self.times_idle[number] += 1
                child.idle, child.nudged = n % 3 > 0, False
                if n % 2 and child.idle:
                    self.slot_table.on_message(child.slot, WentIdle(), self.now)

    def move_die(self, n: int) -> None:
        """A child process exits in order, or dies."""
        child = self.one(n)
        if child is None:
            return
        ends = (EXIT_REQUESTED, 1, EXIT_RECYCLE, signal.SIGSEGV, EXIT_HANDLERS, 1)
        code = ends[n // 5 % len(ends)]
        if code == EXIT_HANDLERS and child.ready:
            code = 70
        child.end = Exit(None, code) if code == signal.SIGSEGV else Exit(code, None)

    def move_stop(self, n: int) -> None:
        """A child process is stopped with SIGSTOP in any state."""
        child = self.one(n)
        if child is not None:
            child.stopped = self.now
            self.slot_table.on_stopped(child.slot, signal.SIGSTOP, self.now)

    def move_continue(self, n: int) -> None:
        found = [child for child in self.children.values() if child.end is None and child.stopped]
        if found:
            child = found[n % len(found)]
            child.stopped = 0.0
            self.slot_table.on_continued(child.slot)
            self.turn()

    def move_obey(self, n: int) -> None:
        """A dismissed child process exits."""
        found = [
            child
            for child in self.children.values()
            if child.end is None and child.dismissed is not None and not child.stopped
        ]
        if found:
            found[n % len(found)].end = Exit(EXIT_REQUESTED, None)

    def move_bury(self, _n: int) -> None:
        """The jobs of a dead child process return to the queue."""
        if self.slot_table.unrecovered and self.slot_table.database_since is not None:
            self.slot_table.unrecovered.pop()

    def move_call(self, n: int) -> None:
        match n % 6:
            case 0:
                self.slot_table.request_all_wakeups()
            case 1:
                self.slot_table.on_gates_changed(self.now)
            case 2:
                self.slot_table.kinds_to_wake |= {MAINTENANCE, RESETTER}
            case _:
                self.slot_table.request_wakeups(n % 4)
        self.turn()

    def move_cancel(self, n: int) -> None:
        child = self.one(n, working=True)
        if child is not None:
            job = child.record.job if n % 3 else n % 9 + 1
            self.slot_table.on_cancel(incarnation=child.incarnation, token=child.record.token, job=job)
            if child.record.phase is Phase.RUNNING and job == child.record.job and child.cancelled is None:
                child.cancelled = self.now

    def move_held(self, n: int) -> None:
        child = self.one(n, working=True)
        if child is not None and child.slot.state is State.READY:
            self.slot_table.on_held_claim(child.slot, HeldClaim(child.record, self.now))

    def move_report(self, n: int) -> None:
        child = self.one(n)
        if child is None:
            return
        said = (
            MoreWork(),
            Problem(f"line {n % 3}"),
            HasStores(alone=n % 2 == 0),
            CancelJob(n % len(self.slot_table.slots), 1, n % 9),
            HasDeathHooks(),
            MembersEnded(),
        )[n % 6]
        if child.slot.kind.works or child.slot.kind is RESETTER or not isinstance(said, HasStores):
            self.slot_table.on_message(child.slot, said, self.now)

    def move_signal(self, n: int) -> None:
        self.slot_table.on_signal(SIGNALS[n % len(SIGNALS)], self.now)

    def move_leave(self, n: int) -> None:
        """The supervisor receives a signal to exit. This is rare, because it ends the sequence."""
        if n % 10:
            return
        self.slot_table.on_signal(
            (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)[n // 10 % 4], self.now
        )
        self.told_at = self.told_at or self.now
        self.turn()

    def move_database(self, n: int) -> None:
        if self.slot_table.database_since is None:
            self.slot_table.on_database_up(self.now)
        elif n % 3 == 0:
            self.slot_table.on_database_down()
        elif n % 31 == 1:
            self.slot_table.on_database_failed()

    def move_lease(self, n: int) -> None:
        """The supervisor registers, renews its lease, or has lost its expired lease to another supervisor."""
        if self.now >= self.lease_deadline:
            if self.slot_table.supervisor:
                self.slot_table.on_lease_lost(self.now)
                return
        if not self.slot_table.supervisor:
            self.slot_table.on_registered(n % 1000 + 1)
        self.lease_deadline = self.now + self.slot_table.limits.lease

    def move_refuse(self, n: int) -> None:
        self.refusing = n % 3 == 0

    def move_wear(self, n: int) -> None:
        child = self.one(n, working=True)
        if child is not None:
            rss = self.slot_table.limits.max_rss * (1 + n % 2) // 2
            self.slot_table.on_status(
                child.slot, work=None, started=self.started[child.slot.number], rss=rss, hook=child.hook
            )

    # -- the end

    def end(self) -> None:
        """Check that the supervisor exits within a time limit after SIGTERM.

        No child process obeys or finishes a job meanwhile.
        """
        limits = self.slot_table.limits
        self.slot_table.on_signal(signal.SIGTERM, self.now)
        bound = (
            self.now
            + limits.drain_timeout
            + 2 * limits.grace
            + limits.spawn_timeout
            + PATIENCE_WITHOUT_DATABASE
            + 4 * TURN
        )
        while self.finished is None:
            assert self.now <= bound, (
                f"the drain does not end: {[child.slot.name for child in self.children.values()]} are left"
            )
            if self.slot_table.database_since is not None:
                self.slot_table.unrecovered.clear()
            self.pass_time(0.5)


Move = tuple[str, int]
WEIGHTS = {
    "time": 12, "turn": 3, "ready": 20, "start": 10, "next": 3, "settle": 1, "hook": 2, "idle": 8, "wait": 4, "die": 4, "stop": 1, "continue": 1, "obey": 3, "bury": 5, "call": 6, "cancel": 3,
    "held": 2, "report": 2, "signal": 3, "leave": 1, "database": 2, "lease": 6, "refuse": 1, "wear": 1,
}  # fmt: skip
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
assert {name.removeprefix("move_") for name in vars(World) if name.startswith("move_")} == WEIGHTS.keys()


def play(moves: list[Move]) -> Counter[str]:
    """Make these moves, let the supervisor exit, and return counts of events.

    Raises AssertionError if an invariant is broken.
    """
    world = World()
    for name, n in moves:
        if world.finished is not None:
            break
        world.seen["moves"] += 1
        getattr(world, f"move_{name}")(n)
    else:
        world.end()
    return world.seen
