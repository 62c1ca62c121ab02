"""Defines a slot: its process, the last reading of its status board, and what was sent to its child.

Records without policy. `SlotTable` stores facts in `Process` and `Seen`; only `state_changes.apply`
writes `Sent`. The states of a slot are a table that names the next state for every state and event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd.workers.ipc.current_work import CurrentWork, Phase

if TYPE_CHECKING:
    from jobherd.supervisor.policy.child_exit import End
    from jobherd.supervisor.policy.child_kinds import ChildKind
    from jobherd.supervisor.policy.stop_sequence import StopSequence


class State(Enum):
    """The state of a slot. Only READY children are woken."""

    EMPTY = "empty"
    """No process. After a crash, the slot may rest until a given time."""
    BOOTING = "booting"
    """Forked, but not READY yet. Killed after the spawn timeout."""
    READY = "ready"
    """Busy, or idle and waiting for work."""
    LEAVING = "leaving"
    """Dismissed: it finishes its claimed work and exits."""


class SlotEvent(Enum):
    """What can happen to the process of a slot."""

    FORKED = "forked"
    LOADED = "loaded"
    """The child reported that it is READY."""
    DISMISSED = "dismissed"
    """Its wake pipe was closed."""
    EXITED = "exited"


TRANSITIONS: Final = {
    State.EMPTY: {
        SlotEvent.FORKED: State.BOOTING,
        SlotEvent.LOADED: State.EMPTY,
        SlotEvent.DISMISSED: State.EMPTY,
        SlotEvent.EXITED: State.EMPTY,
    },
    State.BOOTING: {
        SlotEvent.FORKED: State.BOOTING,
        SlotEvent.LOADED: State.READY,
        SlotEvent.DISMISSED: State.LEAVING,
        SlotEvent.EXITED: State.EMPTY,
    },
    State.READY: {
        SlotEvent.FORKED: State.BOOTING,
        SlotEvent.LOADED: State.READY,
        SlotEvent.DISMISSED: State.LEAVING,
        SlotEvent.EXITED: State.EMPTY,
    },
    State.LEAVING: {
        SlotEvent.FORKED: State.BOOTING,
        # A child may report READY after it was dismissed. If it then counted as READY, it would be
        # woken, and replaced only after it exits.
        SlotEvent.LOADED: State.LEAVING,
        SlotEvent.DISMISSED: State.LEAVING,
        SlotEvent.EXITED: State.EMPTY,
    },
}
"""The state after an event, by the state before."""


class HeldClaim(NamedTuple):
    """What a child holds besides its running job, as its status board showed it.

    Attributes:
        work: the child's current work.
        at: when the status board was read.
        others: the claim has other jobs.
        unwritten: since when an outcome of the claim waits to be written, 0 if none does.
        earlier: an earlier claim has outcomes that may not be written yet.
    """

    work: CurrentWork
    at: float
    others: bool = True
    unwritten: float = 0.0
    earlier: bool = False


@dataclass(slots=True)
class Process:
    """The process that fills the slot, or filled it last."""

    pid: int = 0
    """0 once it was reaped."""
    incarnation: int = 0
    supervisor: int = 0
    """The supervisor id (registration) under which it was forked."""
    generation: int = 0
    """The reload generation of the code that it runs."""
    reserved: str = ""
    """The only queue that it serves; empty: all configured queues."""
    code_version: str = ""
    """Version of the application's code that it runs, if known."""
    forked_at: float = 0.0
    ready_at: float = 0.0
    """When it became READY, 0 before."""
    stopped_at: float = 0.0
    """When it was stopped, for example by SIGSTOP; 0: not stopped."""
    lost_at: float = 0.0
    """When its registration turned out to be lost; 0: it is valid."""
    started_before: int = 0
    """Number of jobs that had started in this slot before its fork."""


@dataclass(slots=True)
class Seen:
    """What was last read of the child: from its status board, and requests about its jobs."""

    work: CurrentWork = field(default_factory=lambda: CurrentWork(Phase.BOOTING))
    idle: bool = False
    times_idle: int = 0
    claims: int = 0
    started: int = 0
    """Number of jobs that have started in this slot."""
    rss: int = 0
    hook: float = 0.0
    """Time limit of a hook that runs outside any job's time limit; 0: no hook runs."""
    exclusive: bool = False
    """The job it runs must not outlive the lease."""
    held: HeldClaim | None = None
    cancels: list[tuple[int, int]] = field(default_factory=list)
    """(claim token, job) pairs that it holds and that should be canceled, started or not."""


@dataclass(slots=True)
class Sent:
    """What was decided about the child and sent to it. Only `state_changes.apply` writes it."""

    stop: StopSequence | None = None
    recycle: bool = False
    """Past a limit of jobs, age or memory: replaced once its successor is READY."""
    woken_claims: int = -1
    """Number of claims on its status board when it was woken. Until that number changes, the
    wake-up is still under way."""
    cancels: frozenset[tuple[int, int]] = frozenset()
    """Those of `Seen.cancels` that the child was notified of, or that a stop sequence covers."""
    released: int = 0
    """Token of the claim whose other jobs were released last."""
    flushed: tuple[int, int] | None = None
    """(claim token, job) for which the supervisor wrote outcomes last; the job is the one that
    delayed them."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits after which the child is replaced, with its share of jitter."""

    jobs: float = 0.0
    age: float = 0.0


@dataclass(slots=True)
class Slot:
    """A numbered position for a child; it outlives the processes that fill it."""

    number: int
    kind: ChildKind
    state: State = State.EMPTY
    since: float = 0.0
    """When the current state began."""
    process: Process = field(default_factory=Process)
    seen: Seen = field(default_factory=Seen)
    sent: Sent = field(default_factory=Sent)
    limits: ChildLimits = field(default_factory=ChildLimits)
    failures: int = 0
    """Consecutive deaths without a healthy period in between."""
    rest_until: float = 0.0
    restarts: int = 0
    """Number of children that have filled this slot after the first."""
    last_end: End | None = None

    @property
    def name(self) -> str:
        """The name for logs and users, with a number only for kinds that can have several children."""
        return f"{self.kind.name} {self.number}" if self.kind.works else self.kind.name

    @property
    def alive(self) -> bool:
        """Whether a process fills the slot."""
        return self.state is not State.EMPTY

    @property
    def is_booting_or_ready(self) -> bool:
        """Whether the child is useful now (READY) or about to be (BOOTING)."""
        return self.state in (State.BOOTING, State.READY)

    def enter(self, event: SlotEvent, now: float) -> bool:
        """Enter the state that follows the event; return whether it is another one."""
        before, self.state = self.state, TRANSITIONS[self.state][event]
        if self.state is not before:
            self.since = now
        return self.state is not before
