"""A numbered slot for a child, and the known facts about its process: state, stop sequence, end.

Records without policy: `fleet.py` stores them, `plan.py` draws conclusions from them, and
`process/children.py` and `crash/recovery.py` carry these out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from jobherd.workers.ipc.status_board import CurrentWork, Phase, Reason

if TYPE_CHECKING:
    from jobherd.supervisor.policy.kinds import Kind


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


class Stage(Enum):
    """How far the stop sequence of a child has come."""

    TOLD = 0
    """The child's own timer has fired, or its status board holds an interruption."""
    TERMED = 1
    """SIGTERM was sent to its process group."""
    KILLED = 2
    """SIGKILL was sent to its process group; only its death remains to be recorded."""


class StopReason(Enum):
    """Why a child is being stopped; also its job's outcome if the stop sequence ends the process."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"
    """It has lost its claim: another supervisor has the job."""
    SPAWN = "spawn"
    """It was not READY in time."""
    QUIT = "quit"
    STUCK = "stuck"
    """It holds no jobs, was dismissed, and does not exit."""
    HOOK = "hook"
    """A hook that runs outside any job's time limit does not end."""
    STOPPED = "stopped"
    """Its process was stopped (SIGSTOP) between two jobs and was not continued."""


REASONS = {StopReason.CANCEL: Reason.CANCEL, StopReason.DRAIN: Reason.DRAIN, StopReason.LOST: Reason.LOST}


@dataclass(slots=True)
class StopSequence:
    """The stop sequence of a child: its start, its claim, its stage. It ends with that claim."""

    why: StopReason
    since: float
    token: int
    job: int
    stage: Stage = Stage.TOLD
    grace: float = 5.0
    told: bool = False
    """The interruption was sent, or the child's own timer does that part."""


class HeldClaim(NamedTuple):
    """What a child holds besides its running job, as its status board showed it.

    Attributes:
        work: the child's current work.
        at: when the board was read.
        others: the claim has other jobs.
        unwritten: since when an outcome of the claim waits to be written, 0 if none does.
        earlier: an earlier claim has outcomes that are not known to be written.
    """

    work: CurrentWork
    at: float
    others: bool = True
    unwritten: float = 0.0
    earlier: bool = False


@dataclass(slots=True)
class Slot:
    """A numbered position for a child; it outlives the processes that fill it."""

    number: int
    kind: Kind
    state: State = State.EMPTY
    since: float = 0.0
    """When the current state began."""
    pid: int = 0
    incarnation: int = 0
    supervisor: int = 0
    """The supervisor id (registration) under which the child was forked."""
    generation: int = 0
    """The reload generation of the code that the child runs."""
    reserved: str = ""
    """The only queue that its child serves; empty: all configured queues."""
    code_version: str = ""
    """Version of the application's code that the child runs, if known."""
    forked_at: float = 0.0
    ready_at: float = 0.0
    failures: int = 0
    """Consecutive deaths without a healthy period in between."""
    rest_until: float = 0.0
    now: CurrentWork = field(default_factory=lambda: CurrentWork(Phase.BOOTING))
    """The current work on its status board when that was last read."""
    stop_sequence: StopSequence | None = None
    cancels: set[tuple[int, int]] = field(default_factory=set)
    """(claim token, job) pairs that it holds and that should be canceled, started or not."""
    untold: list[tuple[int, int]] = field(default_factory=list)
    """Those of `cancels` that the child has not been notified of yet."""
    idle: bool = False
    times_idle: int = 0
    claims: int = 0
    hook: float = 0.0
    """Time limit of a hook that runs outside any job's time limit; 0: no hook runs."""
    exclusive: bool = False
    """The job it runs must not outlive the lease."""
    stopped_at: float = 0.0
    """When its process was stopped, for example by SIGSTOP; 0: not stopped."""
    nudged_claims: int = -1
    """Number of claims on its status board when it was woken. Until that number changes, the
    wake-up is still under way."""
    started_at_fork: int = 0
    held: HeldClaim | None = None
    """What it held besides its running job when its status board was last read."""
    released: int = 0
    """Token of the claim whose other jobs were released last."""
    flushed: tuple[int, int] | None = None
    """(claim token, job) for which the supervisor wrote outcomes last; the job is the one that
    delayed them."""
    rss: int = 0
    worn: bool = False
    """Past a limit of jobs, age or memory: replaced once its successor is READY."""
    jobs_limit: float = 0.0
    age_limit: float = 0.0
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
    def counts(self) -> bool:
        """Whether the child is useful now (READY) or about to be (BOOTING)."""
        return self.state in (State.BOOTING, State.READY)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    code: int | None
    signal: int | None
    core: bool = False
    rss: int = 0
    """Peak memory in bytes."""
    user: float = 0.0
    system: float = 0.0
    oom: bool = False
    """The kernel killed it because memory ran out."""


@dataclass(frozen=True, slots=True)
class Death:
    """What is known about a dead child: enough to settle its jobs and to explain its death."""

    slot: int
    kind: str
    pid: int
    incarnation: int
    supervisor: int
    exit: Exit
    cause: str
    was_ready: bool
    stop_sequence: StopSequence | None
    at: float
    age: float


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended, for users."""

    name: str
    pid: int
    cause: str
    sentence: str
    at: float
    job: int = 0
    job_kind: str = ""
