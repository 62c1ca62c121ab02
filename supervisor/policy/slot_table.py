"""Stores the facts that are reported about the children: messages, exits, signals, status boards.

The module makes no system call, reads no clock and decides nothing. The loop reports what happened
and when (`on_message`, `on_exit`, `on_signal`); `plan` reads the facts and decides;
`state_changes.apply` stores what was decided. So a test of any policy needs only a slot table and a number.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.child_exit import REQUESTED
from jobherd.supervisor.policy.child_kinds import GATEWAY, KINDS, MAINTENANCE
from jobherd.supervisor.policy.run_state import AFTER_SIGNAL, ONE_REQUEST, RunState
from jobherd.supervisor.policy.slot import ChildLimits, HeldClaim, Process, Seen, Sent, Slot, SlotEvent
from jobherd.supervisor.policy.slot_table_state import LONG_AGO, SlotTableState
from jobherd.workers.ipc import pipes
from jobherd.workers.ipc.current_work import CurrentWork, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.policy.child_exit import Death, End


class SlotTable(SlotTableState):
    """Stores what happened to the slots, one method per event."""

    # -- the database

    def on_registered(self, supervisor: int) -> None:
        """Store the id of the supervisor's registration."""
        self.supervisor = supervisor

    def on_lease_lost(self, now: float) -> None:
        """Store that the lease is lost: another supervisor has reclaimed the jobs of all children."""
        self.supervisor = 0
        for slot in self.alive():
            slot.process.lost_at = now
        self.warnings.append(
            "the lease was lost and another supervisor reclaimed this one's jobs: the child processes are "
            "replaced under a new registration"
        )

    def on_database_up(self, now: float) -> None:
        """Store that there is a database session, and wake all children: they end their back-off."""
        self.database_since = now
        self.kinds_to_wake.update(KINDS)

    def on_database_down(self) -> None:
        """Store that the supervisor has no database session."""
        self.database_since = None

    def on_database_failed(self) -> None:
        """Store that the database did not answer in `db_retry_max_attempts` attempts."""
        self.database_failed = True

    # -- requests

    def request_wakeups(self, count: int = 1) -> None:
        """Request wake-ups: there may be work for this many workers.

        If queues have reserved workers, the first idle worker found may serve another queue, so the
        request is for all workers.
        """
        if self.limits.reserved:
            self.request_all_wakeups()
        else:
            self.pending_wakeups += count

    def request_all_wakeups(self) -> None:
        """Request that every idle worker is woken: there may be any amount of work."""
        self.pending_wakeups += sum(slot.kind.claims for slot in self.alive())

    def request_plan(self, now: float) -> None:
        """Request a plan now."""
        self.plan_at = min(self.plan_at, now)

    def on_gates_changed(self, now: float) -> None:
        """Store that a pause or limit has changed: release unstarted jobs, and let others start."""
        self.gates_changed_at, self.offload_failed_at = now, LONG_AGO
        # Remote workers that wait for no job have unstarted ones all the same.
        self.kinds_to_wake |= {MAINTENANCE, GATEWAY}
        self.request_all_wakeups()

    def on_cancel(self, *, incarnation: int, token: int, job: int) -> None:
        """Store a request to cancel a job that a child holds."""
        slot = self.by_incarnation(incarnation)
        if slot is not None and (token, job) not in slot.seen.cancels:
            slot.seen.cancels.append((token, job))

    def on_signal(self, signum: int, now: float) -> None:
        """Change the run state, the wanted workers or the generation after a signal from outside."""
        if after := AFTER_SIGNAL.get(signum):
            if signum != signal.SIGQUIT:
                if now - self.stop_requested_at < ONE_REQUEST and self.run_state is not RunState.SERVING:
                    return
                self.stop_requested_at = now
            self.enter_state(after[self.run_state], now)
        elif signum == signal.SIGHUP and self.run_state is RunState.SERVING:
            self.generation += 1
            self.reloading, self.reload_answer = True, None
        elif signum in (signal.SIGTTIN, signal.SIGTTOU):
            wanted = self.wanted + (1 if signum == signal.SIGTTIN else -1)
            self.wanted = max(0, min(wanted, self.limits.max_workers))
            self.notes.append(f"workers wanted: {self.wanted}")

    def enter_state(self, run_state: RunState, now: float) -> None:
        """Change the run state. By `AFTER_SIGNAL`, no signal leads to an earlier one."""
        if run_state is not self.run_state:
            self.run_state, self.state_since = run_state, now

    # -- processes

    def on_fork(
        self,
        slot: Slot,
        *,
        pid: int,
        incarnation: int,
        now: float,
        started: int,
        jitter: float,
        reserved: str = "",
        code_version: str = "",
    ) -> None:
        """Store the new process of a slot.

        Args:
            slot: the slot.
            pid: the process.
            incarnation: its number among all children of this supervisor.
            now: the current time.
            started: number of jobs that had started in the slot before.
            jitter: in -1..1, spreads its limits, so that not all children are replaced at the same
                time.
            reserved: the only queue that it serves.
            code_version: version of the code that it runs.
        """
        if slot.process.forked_at:
            self.respawns += 1
            slot.restarts += 1
        slot.enter(SlotEvent.FORKED, now)
        slot.process = Process(
            pid, incarnation, self.supervisor, self.generation, reserved, code_version, now, started_before=started
        )
        slot.seen = Seen(times_idle=slot.seen.times_idle, claims=slot.seen.claims, started=started)
        slot.sent = Sent()
        spread = 1 + self.limits.jitter * jitter
        slot.limits = ChildLimits(self.limits.max_jobs * spread, self.limits.max_age * spread)
        self._list_alive()

    def on_fork_failed(self, slot: Slot, rest_until: float) -> None:
        """Store that a fork failed, and until when the slot rests."""
        slot.failures += 1
        slot.rest_until = rest_until

    def on_stopped(self, slot: Slot, signum: int, now: float) -> None:
        """Store that a signal stopped the child's process.

        The kernel reports nothing more about it until it continues or ends.
        """
        slot.process.stopped_at = now
        pid = slot.process.pid
        self.warnings.append(
            f"{slot.name}, process {pid}, was stopped by {signal.Signals(signum).name}: between two jobs it is killed "
            f"{self.limits.spawn_timeout:g} s later, unless it continues; kill -CONT {pid} continues it"
        )

    def on_continued(self, slot: Slot) -> None:
        """Store that the child's stopped process continues."""
        slot.process.stopped_at = 0.0
        self.notes.append(f"{slot.name}, process {slot.process.pid}, continues")
        if slot.kind.claims:
            # it was skipped for work that arrived meanwhile, and perhaps no other child was idle
            self.request_wakeups()

    def on_exit(self, slot: Slot, death: Death) -> None:
        """Store the death of a slot's process, which was reaped."""
        if slot.kind.recovered:
            self.unrecovered.add(death.incarnation)
        self.deaths[death.cause] += 1
        slot.failures, slot.rest_until = death.failures, death.rest_until
        if death.cause == "handlers":
            self.failed_loads.append(slot.name)
        if slot.kind.claims:
            self.request_wakeups()  # it may have been woken and have died before its claim
        slot.enter(SlotEvent.EXITED, death.at)
        slot.process.pid = 0
        slot.seen.work, slot.sent = CurrentWork(Phase.BOOTING), Sent()
        self._list_alive()

    def on_recovered(self, incarnation: int, now: float) -> None:
        """Store that the jobs of a dead child are settled and released."""
        self.unrecovered.discard(incarnation)
        self.recovered_at = now

    def on_explained(self, slot: Slot, end: End) -> None:
        """Store the explanation for the last death in the slot."""
        slot.last_end = end
        if end.cause not in REQUESTED:
            self.ends.append(end)

    # -- messages and status boards of the children

    def on_message(self, slot: Slot, report: pipes.Report, now: float) -> None:
        """Store what a message of a child reports."""
        match report:
            case pipes.Ready():
                if slot.enter(SlotEvent.LOADED, now):
                    slot.process.ready_at = now
                    if slot.kind.loads:  # only they load handlers: any other would let a problem be logged again
                        self.problems.clear()
                    if slot.kind.works:
                        self.ready_generation = max(self.ready_generation, slot.process.generation)
                # only workers count: a maintenance process is READY even if the handlers are broken
                self.ever_ready = self.ever_ready or slot.kind.works
            case pipes.MoreWork():
                self.request_wakeups()
            case pipes.WentIdle():
                self.on_rested()
            case pipes.OpensIn(seconds):
                self.opens_at = min(self.opens_at, now + seconds)
            case pipes.MembersEnded():
                self.kinds_to_wake.add(MAINTENANCE)
            case pipes.HasStores(alone):
                self.has_table_stores, self.only_table_stores = True, alone
            case pipes.HasDeathHooks():
                self.has_death_hooks = True
            case pipes.CancelJob(number, token, job):
                if number < len(self.slots):
                    self.on_cancel(incarnation=self.slots[number].process.incarnation, token=token, job=job)
            case pipes.Problem(text):
                if text not in self.problems:  # every worker finds the same broken module
                    self.problems.add(text)
                    self.warnings.append(f"{slot.name}: {text}")

    def on_status(
        self,
        slot: Slot,
        *,
        work: CurrentWork | None,
        started: int,
        rss: int,
        hook: float = 0.0,
        exclusive: bool = False,
    ) -> None:
        """Store a reading of the child's status board. An inconsistent record (None) changes nothing."""
        seen = slot.seen
        seen.hook, seen.started = hook, started
        if work is not None:
            seen.work, seen.exclusive = work, exclusive
        if rss:
            seen.rss = rss
        # Tokens grow: a request about a later claim than the status board shows is kept for that claim.
        seen.cancels = [cancel for cancel in seen.cancels if cancel[0] >= seen.work.token]

    def on_idle_flag(self, slot: Slot, *, idle: bool, claims: int) -> None:
        """Store the idle flag, and how many claims the child has made."""
        slot.seen.idle, slot.seen.claims = idle, claims

    def on_idle_counts(self, counts: Mapping[int, tuple[bool, int]], now: float) -> None:
        """Store by slot whether a READY child that claims is idle, and how often it has been."""
        rested = not counts
        for number, (idle, times) in counts.items():
            seen = self.slots[number].seen
            rested = rested or idle or times != seen.times_idle
            seen.times_idle = times
        if rested:
            self.on_rested()
        elif self.busy_since is None:
            self.busy_since = now

    def on_rested(self) -> None:
        """Store that a worker is or was idle."""
        self.busy_since = None

    def on_load(self, load: float) -> None:
        """Store the load that `stragglers.smoothed_load` has calculated."""
        self.load = load

    def on_held_claim(self, slot: Slot, held: HeldClaim | None) -> None:
        """Store what the child holds besides its running job; None: nothing."""
        slot.seen.held = held

    def on_offload_failed(self, slot: Slot, token: int, *, release: bool, now: float) -> None:
        """Store that a request to release the rest of a claim, or to write its outcomes, was lost or rejected."""
        sent = slot.sent
        if release and sent.released == token:
            sent.released = 0
        elif not release and sent.flushed is not None and sent.flushed[0] == token:
            sent.flushed = None
        else:
            return
        self.offload_failed_at = now

    def _list_alive(self) -> None:
        # computed here and not on each read: a wake-up is waiting for that read
        self._alive = tuple(slot for slot in self.slots if slot.alive)
