"""Holds the state on which the supervisor decides: the slots of its children, and facts about itself.

`SlotTableState` has queries and no method that writes, so a policy that takes a `SlotTableState` changes nothing.
`slot_table.py` stores what is reported, and `state_changes.py` what was decided.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.child_kinds import KINDS, WORKER, ChildKind
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.slot import Slot, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.supervisor.policy.child_exit import End
    from jobherd.supervisor.policy.limits import Limits

LONG_AGO = float("-inf")


class SlotTableState:
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
        self.state_since = 0.0
        self.stop_requested_at = LONG_AGO
        """When the last signal to stop was counted."""
        self.exit_code: int | None = None
        """The exit code, once a failure has decided it."""
        self.wanted = limits.workers
        """Number of workers that there should be."""
        self.plan_at = 0.0
        """When the plan must be made again at the latest."""
        self.incarnations = 0
        self.respawns = 0
        self.ever_ready = False
        """A worker of this run has loaded its handlers."""
        # the database
        self.supervisor = 0
        """The registered supervisor id; 0: not registered, so no child is forked."""
        self.lease_deadline = float("inf")
        """Monotonic time from which the supervisor's lease may have expired."""
        self.database_since: float | None = None
        """Since when the supervisor has its database session; None: it has none."""
        self.database_failed = False
        """The database did not answer in `db_retry_max_attempts` attempts."""
        self.rejected = False
        """The gateway rejects this host, and has never accepted it: a mistake in the settings."""
        # wake-ups
        self.pending_wakeups = 0
        """Number of idle workers that should be woken."""
        self.kinds_to_wake: set[ChildKind] = set()
        """Kinds of which every child should be woken."""
        self.opens_at = float("inf")
        """When a rate limit lets the next waiting job start; inf: no job waits for one."""
        self.busy_since: float | None = None
        """Since when no worker was seen idle; None: one may be idle."""
        # what the handlers of the workers need
        self.has_death_hooks = False
        """A worker has `on_death` hooks."""
        self.has_table_stores = False
        """A worker serves a table of the application."""
        self.only_table_stores = False
        """The workers claim nothing from the queue, only from such tables."""
        # stragglers
        self.load = 1.0
        """Runnable processes per processor while no worker is idle. A job takes that many times
        longer than its own processor time."""
        self.gates_changed_at = LONG_AGO
        """When a pause or limit last changed."""
        self.offload_failed_at = LONG_AGO
        """When an offload was last lost or rejected; the cause may affect the next one as well."""
        # deaths
        self.unrecovered: set[int] = set()
        """Dead children, by incarnation, whose jobs are not released yet."""
        self.recovered_at = 0.0
        """When the jobs of the last death were settled."""
        self.deaths: Counter[str] = Counter()
        self.ends: deque[End] = deque(maxlen=10)
        """The latest unexpected ends, oldest first."""
        # reloads
        self.generation = 0
        """Number of reloads."""
        self.ready_generation = 0
        """The latest generation of which a worker became READY."""
        self.failed_loads: list[str] = []
        """Names of children that exited because the handlers do not load, until a plan has seen them."""
        self.reloading = False
        self.reload_answer: str | None = None
        """Whether the code of the latest reload loads. Empty: a worker with that code became READY;
        a text: why it failed; None: undecided."""
        self.problems: set[str] = set()
        """Problems of the handlers that were logged since a child became READY."""
        self.notes: list[str] = []
        """Messages for the log at level INFO; the loop takes them."""
        self.warnings: list[str] = []
        """Messages for the log at level WARNING."""

    # -- queries

    def workers(self) -> Iterator[Slot]:
        """Return the slots of workers."""
        return (slot for slot in self.slots if slot.kind.works)

    def alive(self) -> tuple[Slot, ...]:
        """Return the slots that a process fills."""
        return self._alive

    def by_incarnation(self, incarnation: int) -> Slot | None:
        """Return the slot of that child, or None if it is dead."""
        return next((slot for slot in self._alive if slot.process.incarnation == incarnation), None)

    def wants(self, kind: ChildKind) -> int:
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
