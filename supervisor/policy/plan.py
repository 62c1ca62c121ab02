"""Decides what to do: from a fleet and the current time to actions and the next time to plan.

Every policy of the supervisor is here: which child is forked, woken, dismissed, interrupted or
killed, and when. The module makes no system call and reads no clock. It records each decision on
the fleet, so that it decides only once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final

from jobherd.supervisor.policy.actions import Action, Dismiss, Finish, Fork, Interrupt, Kill, WakeChild
from jobherd.supervisor.policy.fleet import Fleet, RunState
from jobherd.supervisor.policy.kinds import KINDS, Kind
from jobherd.supervisor.policy.slot import REASONS, Slot, Stage, State, StopReason, StopSequence
from jobherd.supervisor.policy.stragglers import offload
from jobherd.workers.ipc.status_board import Interruption, Reason

NEVER: Final = float("inf")
BUSY: Final = 0.2
"""Seconds without an idle worker after which producers need not notify. Enabling notifications
again costs three round trips."""
PATIENCE_WITHOUT_DATABASE: Final = 3.0
"""Seconds for which an exiting supervisor waits for an unreachable database to release the jobs of
dead children. After that, the jobs are reclaimed when the lease expires."""
PATIENCE_WITH_DATABASE: Final = 6.0
"""The same limit, after `drain_timeout`, for a database that answers but executes nothing. Another
session may hold a lock on a table for hours. It is longer than the server's time limit for a
statement of the supervisor, and starts again with each death that is settled."""


@dataclass(slots=True)
class Plan:
    """The actions to take now, and the time to plan next."""

    actions: list[Action] = field(default_factory=list)
    wake_at: float = NEVER

    def later(self, when: float) -> None:
        """Plan again at that time at the latest."""
        self.wake_at = min(self.wake_at, when)


def plan(fleet: Fleet, now: float) -> Plan:
    """Return what to do.

    The order matters: a child to be killed is not woken, and nothing is forked for one to be
    stopped.
    """
    result = Plan()
    _stop(fleet, now, result)
    _stop_the_late(fleet, now, result)
    for slot in fleet.alive():
        if (straggler := offload(fleet, slot)) is not None and slot.held is not None:
            result.actions.append(straggler)
            if straggler.release:
                slot.released = straggler.token
            else:
                slot.flushed = straggler.token, slot.held.work.job
        _tell(slot, now, result)
        _advance(slot, now, result)
    if fleet.run_state is RunState.SERVING and fleet.exit_code is None:
        _replace(fleet, now, result)
    return result


def hears(fleet: Fleet, now: float) -> bool:
    """Return whether producers should notify this supervisor.

    False once every worker has been busy for `BUSY` seconds: a busy worker claims its next jobs
    without being woken.
    """
    return fleet.busy_since is None or now < fleet.busy_since + BUSY


def nudges(fleet: Fleet) -> list[Action]:
    """Wake as many idle children as were requested.

    A request that no child can take is not lost: a busy worker looks for jobs again before it goes
    idle.
    """
    actions: list[Action] = []
    for slot in fleet.alive():
        if slot.state not in (State.READY, State.BOOTING):
            continue
        if slot.kind in fleet.kinds_to_wake:
            actions.append(WakeChild(slot))
            fleet.nudged(slot)
        elif (
            slot.kind.works
            and fleet.pending_wakeups > 0
            and slot.state is State.READY
            and slot.idle
            and slot.stop_sequence is None
        ):
            fleet.pending_wakeups -= 1
            actions.append(WakeChild(slot))
            fleet.nudged(slot)
    fleet.pending_wakeups = 0
    fleet.kinds_to_wake.clear()
    return actions


def _stop(fleet: Fleet, now: float, result: Plan) -> None:
    """Stop the fleet as its run state says: workers, then other children, then the supervisor."""
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
            # A worker without a job may wait for the database to release its claim. The supervisor
            # does that once the worker is dead.
            fleet.start_stop_sequence(slot, StopReason.DRAIN if slot.now.job else StopReason.STUCK, now, grace=grace)
    else:
        result.later(fleet.course_since + limits.drain_timeout)
    if workers:
        return
    if fleet.unrecovered and fleet.run_state is not RunState.IMMEDIATE_SHUTDOWN:
        # Jobs of dead children are still to be released. If the database is down, the lease does
        # it, so do not wait. Do not wait indefinitely for one that rejects or blocks the release
        # either, and not at all after a second signal to stop.
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
            )  # it holds no jobs, and may be waiting for a database that is down
    if not others:
        result.actions.append(Finish(fleet.exit_code or 0))


def _stop_the_late(fleet: Fleet, now: float, result: Plan) -> None:
    """Start the stop sequence of children that have passed one of their time limits."""
    limits = fleet.limits
    for slot in fleet.alive():
        stop_sequence = slot.stop_sequence
        running = slot.now.job and slot.now.runs
        if (
            running
            and slot.now.deadline < NEVER
            and (
                stop_sequence is None or (stop_sequence.why is StopReason.CANCEL and stop_sequence.stage is Stage.TOLD)
            )
        ):
            # The child's own timer fires at the deadline. The supervisor's part of the stop
            # sequence counts from there, unless a sequence is already under way.
            if now >= slot.now.deadline:
                slot.stop_sequence = StopSequence(
                    StopReason.TIMEOUT, slot.now.deadline, slot.now.token, slot.now.job, grace=limits.grace, told=True
                )
            else:
                result.later(slot.now.deadline)
        if running and slot.exclusive and (stop_sequence is None or stop_sequence.why is not StopReason.LOST):
            # After the child's own timer, which fires a fifth of the lease before the lease ends,
            # but long enough before that end.
            last = fleet.lease_deadline - min(1.0, limits.lease / 15)
            if now >= last:
                slot.stop_sequence = StopSequence(
                    StopReason.LOST, now, slot.now.token, slot.now.job, grace=0.0, told=True
                )
            else:
                result.later(last)
        if slot.hook and slot.stop_sequence is None:
            # The child's own timer fires then too. A hook that ignores it would block the worker
            # indefinitely, without a message.
            if now >= slot.hook:
                slot.stop_sequence = StopSequence(
                    StopReason.HOOK, slot.hook, slot.now.token, slot.now.job, grace=limits.grace, told=True
                )
            else:
                result.later(slot.hook)
        if slot.stopped_at and not slot.now.runs:
            # A stopped process would keep its slot, and perhaps a claim, indefinitely. While it
            # runs a job or a hook, that one's time limit applies. A debugger stops a process in
            # another way, which the kernel does not report to the supervisor.
            since = slot.stopped_at + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.STOPPED, now, grace=0.0)
            else:
                result.later(since)
        if slot.state is State.BOOTING and fleet.database_since is not None:
            # A child may stay in BOOTING while the database is down; a child that hangs may not.
            since = max(slot.since, fleet.database_since) + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.SPAWN, now, grace=0.0)
            else:
                result.later(since)
        if (
            slot.state is State.LEAVING
            and not slot.now.job
            and (fleet.database_since is not None or not slot.kind.works)
        ):
            # Only a worker may wait for the database to release its claim, so a new session
            # restarts its limit. The other children hold nothing and get no extension: sessions may
            # end every few seconds while statements are blocked, and each would restart their
            # limit.
            since = max(slot.since, (fleet.database_since or 0.0) if slot.kind.works else 0.0) + limits.spawn_timeout
            if now >= since:
                fleet.start_stop_sequence(slot, StopReason.STUCK, now, grace=0.0)
            else:
                result.later(since)


def _tell(slot: Slot, now: float, result: Plan) -> None:
    """Notify a child that a claimed job it has not started is canceled.

    One job at a time, since a status board holds one interruption.
    """
    if slot.untold and slot.stop_sequence is None:
        token, job = slot.untold.pop(0)
        result.actions.append(Interrupt(slot, Interruption(Reason.CANCEL, token, job)))
        if slot.untold:
            result.later(now + 0.05)


def _advance(slot: Slot, now: float, result: Plan) -> None:
    """Take the steps that are due.

    Interruption, SIGTERM after one grace period, SIGKILL after two.
    """
    stop_sequence = slot.stop_sequence
    if stop_sequence is None or stop_sequence.stage is Stage.KILLED:
        return
    if not stop_sequence.told:
        stop_sequence.told = True
        if stop_sequence.why in REASONS:
            result.actions.append(
                Interrupt(slot, Interruption(REASONS[stop_sequence.why], stop_sequence.token, stop_sequence.job))
            )
    if now >= stop_sequence.since + 2 * stop_sequence.grace:
        stop_sequence.stage = Stage.KILLED
        result.actions.append(Kill(slot, signal.SIGKILL))
        return
    if stop_sequence.stage is Stage.TOLD and now >= stop_sequence.since + stop_sequence.grace:
        stop_sequence.stage = Stage.TERMED
        result.actions.append(Kill(slot, signal.SIGTERM))
    result.later(
        stop_sequence.since + (stop_sequence.grace if stop_sequence.stage is Stage.TOLD else 2 * stop_sequence.grace)
    )


def _replace(fleet: Fleet, now: float, result: Plan) -> None:
    """Fork missing children and dismiss surplus ones, without going below the wanted number."""
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
        if old and kind.works and missing <= 0 and not resting and len(here) <= wanted:
            missing = 1  # one new worker at a time; an old one is dismissed when it is READY
        free = [slot for slot in slots if not slot.alive and slot.rest_until <= now]
        forked = free[: max(missing, 0)]
        if fleet.limits.reserved and kind.works:
            _reserve(forked, [slot for slot in here if slot not in old], fleet)
        result.actions.extend(Fork(slot) for slot in forked)
        for slot in _surplus(here, old, wanted, kind):
            result.actions.append(Dismiss(slot))
            fleet.dismissed(slot, now)
    if fleet.reloading and not any(_outdated(slot, fleet) for slot in fleet.workers() if slot.counts):
        fleet.reloading, fleet.reload_answer = False, ""
        fleet.notes.append("reloaded: every worker runs the new code")


def _reserve(forked: list[Slot], here: list[Slot], fleet: Fleet) -> None:
    """Assign a queue to each new worker: one that lacks reserved workers, or all queues."""
    lacking = [
        queue
        for queue, count in fleet.limits.reserved
        for _ in range(count - sum(slot.reserved == queue for slot in here))
    ]
    for place, slot in enumerate(forked):
        slot.reserved = lacking[place] if place < len(lacking) else ""


def _outdated(slot: Slot, fleet: Fleet) -> bool:
    # Of the children that load handlers, workers are replaced first: if the new code is broken, the
    # others keep the old code.
    return slot.worn or (
        slot.generation < fleet.generation and (slot.kind.works or (slot.kind.loads and not fleet.reloading))
    )


def _surplus(here: list[Slot], old: list[Slot], wanted: int, kind: Kind) -> list[Slot]:
    """Return the children to dismiss.

    First outdated ones, while enough others are READY, then the highest numbers above the wanted
    count.
    """
    if not kind.works:
        return old if len(here) <= wanted else here[wanted:]
    ready = sum(slot.state is State.READY for slot in here)
    fresh = [slot for slot in here if slot not in old]
    going = sorted(old, key=lambda slot: (slot.state is State.READY, bool(slot.now.job)))[: max(ready - wanted, 0)]
    if len(here) - len(going) > wanted and not old:
        going += sorted(fresh, key=lambda slot: slot.number)[wanted:]
    return going
