"""What follows from what is known: a fleet and a number for now, and out come actions and the time to look again.

Every policy of the parent stands here: who is forked, woken, dismissed, interrupted, killed, and when. It makes no system call and reads no
clock; it notes on the fleet what it has decided, so that it decides it once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final

from jobherd.supervisor.policy.fleet import Fleet, RunState
from jobherd.supervisor.policy.kinds import KEEPER, KINDS, RESETTER, WORKER, Kind
from jobherd.supervisor.policy.slot import REASONS, Slot, Stage, State, StopReason, StopSequence
from jobherd.workers.ipc.status_board import Interruption, Reason

NEVER: Final = float("inf")
BUSY: Final = 0.2
"""Seconds without an idle worker after which producers need not notify any more: hearing again costs three round trips."""
PATIENCE_WITHOUT_DATABASE: Final = 3.0
"""Seconds that a leaving supervisor waits for a database that is away to take its jobs back; then the lease does it."""
PATIENCE_WITH_DATABASE: Final = 6.0
"""The same, once the drain has lasted as long as it may, for one that answers and lets nobody through: somebody may hold a lock on a table
for hours. Longer than the server tries a statement of ours, and counted anew from each death that is settled."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Fill the slot."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class WakeChild:
    """Write a byte to its wake pipe."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class ReleaseRest:
    """Let it start nothing more of that claim, write what it has finished, and give the rest back."""

    slot: Slot
    token: int


@dataclass(frozen=True, slots=True)
class FlushOutcomes:
    """Write what it has finished of that claim, and of the one before; it goes on with the rest."""

    slot: Slot
    token: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Close its wake pipe."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Say so on its board and send SIGUSR2."""

    slot: Slot
    what: Interruption


@dataclass(frozen=True, slots=True)
class Kill:
    """Send a signal to its process group."""

    slot: Slot
    signum: signal.Signals


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: leave with this code."""

    code: int


Action = Fork | WakeChild | ReleaseRest | FlushOutcomes | Dismiss | Interrupt | Kill | Finish


@dataclass(slots=True)
class Plan:
    """What to do now, and when to think again."""

    actions: list[Action] = field(default_factory=list)
    wake_at: float = NEVER

    def later(self, when: float) -> None:
        """Think again at that time at the latest."""
        self.wake_at = min(self.wake_at, when)


def plan(fleet: Fleet, now: float) -> Plan:
    """Return what to do. The order matters: who is to be killed is not nudged, who is to leave is not forked for."""
    result = Plan()
    _stop(fleet, now, result)
    _stop_the_late(fleet, now, result)
    for slot in fleet.alive():
        if slot.late is not None and slot.state is State.READY:
            result.actions.append(ReleaseRest(slot, slot.late[0]))
            slot.relieved, slot.late = slot.late[0], None
        elif slot.owing is not None and slot.state is State.READY:
            result.actions.append(FlushOutcomes(slot, slot.owing[0]))
            slot.helped, slot.owing = slot.owing, None
        _tell(slot, now, result)
        _advance(slot, now, result)
    if fleet.run_state is RunState.SERVING and fleet.exit_code is None:
        _replace(fleet, now, result)
    result.actions.extend(nudges(fleet))
    return result


def hears(fleet: Fleet, now: float) -> bool:
    """Return whether producers should notify us: unless every worker has been busy for a while, for then each claims by itself."""
    return fleet.busy_since is None or now < fleet.busy_since + BUSY


def nudges(fleet: Fleet) -> list[Action]:
    """Wake as many idle children as were called for. A call that nobody can take is not lost: the busy look again before they sleep."""
    actions: list[Action] = []
    for slot in fleet.alive():
        if slot.state not in (State.READY, State.BOOTING):
            continue
        if fleet.all_called:
            actions.append(WakeChild(slot))
            fleet.nudged(slot)
        elif slot.kind.works and fleet.pending_wakeups > 0 and slot.state is State.READY and slot.idle and slot.stop_sequence is None:
            fleet.pending_wakeups -= 1
            actions.append(WakeChild(slot))
            fleet.nudged(slot)
        elif (slot.kind is KEEPER and fleet.keeper_called) or (slot.kind is RESETTER and fleet.resetter_called):
            actions.append(WakeChild(slot))
    fleet.pending_wakeups, fleet.all_called, fleet.keeper_called, fleet.resetter_called = 0, False, False, False
    return actions


def _stop(fleet: Fleet, now: float, result: Plan) -> None:
    """Bring the fleet down as its course says: workers first, then the others, then ourselves."""
    limits = fleet.limits
    if fleet.exit_code is None and fleet.run_state is RunState.SERVING:
        return
    workers = [slot for slot in fleet.alive() if slot.kind.works]
    for slot in workers:
        if slot.counts:
            result.actions.append(Dismiss(slot))
            fleet.dismissed(slot, now)
    if fleet.run_state is RunState.IMMEDIATE_SHUTDOWN:
        for slot in fleet.alive():
            fleet.start_stop_sequence(slot, StopReason.QUIT, now, grace=0.0)
    elif fleet.run_state is RunState.FAST_SHUTDOWN or now >= fleet.course_since + limits.drain_timeout:
        grace = limits.hurry if fleet.run_state is RunState.FAST_SHUTDOWN else limits.grace
        for slot in workers:
            # One without a job may be waiting for a database to hand its claim back to; that is the parent's to do once it is dead.
            fleet.start_stop_sequence(slot, StopReason.DRAIN if slot.now.job else StopReason.STUCK, now, grace=grace)
    else:
        result.later(fleet.course_since + limits.drain_timeout)
    if workers:
        return
    if fleet.deaths_open and fleet.run_state is not RunState.IMMEDIATE_SHUTDOWN:
        # The jobs of the dead are still to be given back. A database that is away is not waited for: the lease will do it. Nor, for ever,
        # one that refuses it or makes it wait; and not at all by who was told twice.
        until = max(slot.since for slot in fleet.slots) + PATIENCE_WITHOUT_DATABASE
        if fleet.database_since is not None and fleet.run_state is not RunState.FAST_SHUTDOWN:
            last = max(until - PATIENCE_WITHOUT_DATABASE, fleet.course_since + limits.drain_timeout, fleet.buried_at)
            until = last + PATIENCE_WITH_DATABASE
        if now < until:
            result.later(until)
            return
    others = list(fleet.alive())
    for slot in others:
        if slot.counts:
            result.actions.append(Dismiss(slot))
            fleet.dismissed(slot, now)
        if fleet.run_state is RunState.FAST_SHUTDOWN:
            fleet.start_stop_sequence(
                slot, StopReason.STUCK, now, grace=limits.hurry
            )  # it holds nothing, and may be waiting for a database that is away
    if not others:
        result.actions.append(Finish(fleet.exit_code or 0))


def _stop_the_late(fleet: Fleet, now: float, result: Plan) -> None:
    """Put those on the ladder who are past a time of theirs."""
    limits = fleet.limits
    for slot in fleet.alive():
        stop_sequence = slot.stop_sequence
        running = slot.now.job and slot.now.runs
        if (
            running
            and slot.now.deadline < NEVER
            and (stop_sequence is None or (stop_sequence.why is StopReason.CANCEL and stop_sequence.stage is Stage.TOLD))
        ):
            # Its own timer rings at the deadline; the parent's part of the ladder counts from there, unless it is on its way already.
            if now >= slot.now.deadline:
                slot.stop_sequence = StopSequence(
                    StopReason.TIMEOUT, slot.now.deadline, slot.now.token, slot.now.job, grace=limits.grace, told=True
                )
            else:
                result.later(slot.now.deadline)
        if running and slot.exclusive and (stop_sequence is None or stop_sequence.why is not StopReason.LOST):
            # After the child's own timer, which rings a fifth of the lease before its end, and long enough before that end.
            last = fleet.lease_deadline - min(1.0, limits.lease / 15)
            if now >= last:
                slot.stop_sequence = StopSequence(StopReason.LOST, now, slot.now.token, slot.now.job, grace=0.0, told=True)
            else:
                result.later(last)
        if slot.hook and slot.stop_sequence is None:
            # Its own timer rings then as well; a hook that this does not reach would take a worker away for ever, and nobody would be told.
            if now >= slot.hook:
                slot.stop_sequence = StopSequence(StopReason.HOOK, slot.hook, slot.now.token, slot.now.job, grace=limits.grace, told=True)
            else:
                result.later(slot.hook)
        if slot.stopped_at and not slot.now.runs:
            # It would hold its place for ever, and perhaps a claim. One that runs a job or a hook has that one's time; whoever looks at it
            # with a debugger stops it in another way, which nobody tells the parent.
            since = slot.stopped_at + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.STOPPED, now, grace=0.0)
            else:
                result.later(since)
        if slot.state is State.BOOTING and fleet.database_since is not None:
            # A child that waits for a database which is away boots as long as that takes; one that hangs does not.
            since = max(slot.since, fleet.database_since) + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.SPAWN, now, grace=0.0)
            else:
                result.later(since)
        if slot.state is State.LEAVING and not slot.now.job and (fleet.database_since is not None or not slot.kind.works):
            # A worker that waits for a database has something to hand back; the others have not, and need none to leave. They would be waited
            # for anew with each session of ours, which may end every few seconds while something keeps our statements waiting.
            since = max(slot.since, (fleet.database_since or 0.0) if slot.kind.works else 0.0) + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.STUCK, now, grace=0.0)
            else:
                result.later(since)


def _tell(slot: Slot, now: float, result: Plan) -> None:
    """Tell a child of a job it holds and has not started that it is cancelled; one at a time, for its board holds one interruption."""
    if slot.untold and slot.stop_sequence is None:
        token, job = slot.untold.pop(0)
        result.actions.append(Interrupt(slot, Interruption(Reason.CANCEL, token, job)))
        if slot.untold:
            result.later(now + 0.05)


def _advance(slot: Slot, now: float, result: Plan) -> None:
    """Take the rungs that are due: the interruption, SIGTERM after one grace, SIGKILL after two."""
    stop_sequence = slot.stop_sequence
    if stop_sequence is None or stop_sequence.stage is Stage.KILLED:
        return
    if not stop_sequence.told:
        stop_sequence.told = True
        if stop_sequence.why in REASONS:
            result.actions.append(Interrupt(slot, Interruption(REASONS[stop_sequence.why], stop_sequence.token, stop_sequence.job)))
    if now >= stop_sequence.since + 2 * stop_sequence.grace:
        stop_sequence.stage = Stage.KILLED
        result.actions.append(Kill(slot, signal.SIGKILL))
        return
    if stop_sequence.stage is Stage.TOLD and now >= stop_sequence.since + stop_sequence.grace:
        stop_sequence.stage = Stage.TERMED
        result.actions.append(Kill(slot, signal.SIGTERM))
    result.later(stop_sequence.since + (stop_sequence.grace if stop_sequence.stage is Stage.TOLD else 2 * stop_sequence.grace))


def _replace(fleet: Fleet, now: float, result: Plan) -> None:
    """Fork what is missing and dismiss what is too much, never going below what is wanted."""
    if not fleet.supervisor:
        return
    for kind in KINDS:
        slots = [slot for slot in fleet.slots if slot.kind is kind]
        wanted = fleet.wants(kind)
        here = [slot for slot in slots if slot.counts]
        old = [slot for slot in here if _outdated(slot, fleet)]
        resting = [slot for slot in slots if not slot.alive and slot.rest_until > now]
        for slot in resting:
            result.later(slot.rest_until)
        missing = wanted - len(here) - len(resting)
        if old and kind is WORKER and missing <= 0 and not resting and len(here) <= wanted:
            missing = 1  # one newcomer at a time; an old one goes when it is READY
        free = [slot for slot in slots if not slot.alive and slot.rest_until <= now]
        forked = free[: max(missing, 0)]
        if fleet.limits.reserved and kind is WORKER:
            _reserve(forked, [slot for slot in here if slot not in old], fleet)
        result.actions.extend(Fork(slot) for slot in forked)
        for slot in _surplus(here, old, wanted, kind):
            result.actions.append(Dismiss(slot))
            fleet.dismissed(slot, now)
    if fleet.reloading and not any(_outdated(slot, fleet) for slot in fleet.workers() if slot.counts):
        fleet.reloading, fleet.reload_answer = False, ""
        fleet.notes.append("reloaded: every worker runs the new code")


def _reserve(forked: list[Slot], here: list[Slot], fleet: Fleet) -> None:
    """Say which queue each newcomer serves: one that lacks workers of its own, or all."""
    lacking = [queue for queue, count in fleet.limits.reserved for _ in range(count - sum(slot.reserved == queue for slot in here))]
    for place, slot in enumerate(forked):
        slot.reserved = lacking[place] if place < len(lacking) else ""


def _outdated(slot: Slot, fleet: Fleet) -> bool:
    # Of those that load the handlers the workers go first: should the new code be broken, the others keep the old one.
    return slot.worn or (slot.generation < fleet.generation and (slot.kind.works or (slot.kind.loads and not fleet.reloading)))


def _surplus(here: list[Slot], old: list[Slot], wanted: int, kind: Kind) -> list[Slot]:
    """Who may go: outdated ones as far as enough others are READY, then the highest numbers above what is wanted."""
    if kind is not WORKER:
        return old if len(here) <= wanted else here[wanted:]
    ready = sum(slot.state is State.READY for slot in here)
    fresh = [slot for slot in here if slot not in old]
    going = sorted(old, key=lambda slot: (slot.state is State.READY, bool(slot.now.job)))[: max(ready - wanted, 0)]
    if len(here) - len(going) > wanted and not old:
        going += sorted(fresh, key=lambda slot: slot.number)[wanted:]
    return going
