"""A numbered place for a child, and what can be known of whoever fills it: its state, the ladder it is on, how it ended.

Records without policy: `fleet.py` keeps them, `plan.py` draws conclusions from them, `crew.py` and `undertaker.py` carry these out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from jobherd.workers.ipc.status_board import CurrentWork, Phase, Reason

if TYPE_CHECKING:
    from jobherd.supervisor.policy.kinds import Kind


class State(Enum):
    """Where a slot stands. Only READY children are nudged."""

    EMPTY = "empty"
    """No process. It may rest until a time, after a crash."""
    BOOTING = "booting"
    """Forked; it has not said READY. Past the spawn timeout it is killed."""
    READY = "ready"
    """It works or waits for work."""
    LEAVING = "leaving"
    """Dismissed: it finishes what it holds and goes."""


class Stage(Enum):
    """How far the ladder has been climbed with a child that must stop what it does."""

    TOLD = 0
    """Its own timer has rung, or an interruption stands on its board."""
    TERMED = 1
    """SIGTERM went to its process group."""
    KILLED = 2
    """SIGKILL went to its process group; only its death remains to be noted."""


class StopReason(Enum):
    """Why a child is on the ladder; becomes the outcome of its job if the ladder ends it."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"
    """Its claim is lost: somebody else has the job."""
    SPAWN = "spawn"
    """It was not READY in time."""
    QUIT = "quit"
    STUCK = "stuck"
    """It holds nothing, was dismissed, and does not leave."""
    HOOK = "hook"
    """A hook does not end, in nobody's time."""
    STOPPED = "stopped"
    """Somebody stopped its process between two jobs, and nobody has continued it."""


REASONS = {StopReason.CANCEL: Reason.CANCEL, StopReason.DRAIN: Reason.DRAIN, StopReason.LOST: Reason.LOST}


@dataclass(slots=True)
class StopSequence:
    """The ladder a child is on: from when, for which claim, how far. It ends with that claim."""

    why: StopReason
    since: float
    token: int
    job: int
    stage: Stage = Stage.TOLD
    grace: float = 5.0
    told: bool = False
    """The interruption stands on its board."""


@dataclass(slots=True)
class Slot:
    """A numbered place for a child; it outlives the processes that fill it."""

    number: int
    kind: Kind
    state: State = State.EMPTY
    since: float = 0.0
    """When the state began."""
    pid: int = 0
    incarnation: int = 0
    supervisor: int = 0
    """Under which registration the child was forked."""
    generation: int = 0
    """Under which reading of the code."""
    reserved: str = ""
    """The one queue that its child serves; empty: all that are asked for."""
    code_version: str = ""
    """Of the application's code that its child runs, as far as it is known."""
    forked_at: float = 0.0
    ready_at: float = 0.0
    failures: int = 0
    """Deaths in a row without health between."""
    rest_until: float = 0.0
    now: CurrentWork = field(default_factory=lambda: CurrentWork(Phase.BOOTING))
    """What its board said when it was last looked at."""
    stop_sequence: StopSequence | None = None
    cancels: set[tuple[int, int]] = field(default_factory=set)
    """Claims and jobs it holds that somebody asked to cancel, started or not."""
    untold: list[tuple[int, int]] = field(default_factory=list)
    """Those of them it has not been told of yet."""
    idle: bool = False
    times_idle: int = 0
    claims: int = 0
    hook: float = 0.0
    """When a hook that runs outside of any job's time should be through; 0: none runs."""
    exclusive: bool = False
    """The job it runs may not outlive the lease."""
    stopped_at: float = 0.0
    """When its process was stopped, as by SIGSTOP; 0: it goes on."""
    nudged_claims: int = -1
    """How many claims its board showed when it was nudged; while that stands, the nudge is on its way."""
    started_at_fork: int = 0
    late: tuple[int, int] | None = None
    """The claim whose running job takes longer than a child may hold others for, and that job."""
    relieved: int = 0
    """The claim that was relieved of its other jobs last."""
    owing: tuple[int, int] | None = None
    """The claim whose running job holds up an outcome for too long, where nothing is given back for it, and that job."""
    helped: tuple[int, int] | None = None
    """The claim of which the parent has written the outcomes last, and the job that they stood behind."""
    rss: int = 0
    worn: bool = False
    """Past a limit of jobs, age or memory: to be replaced once its successor is READY."""
    jobs_limit: float = 0.0
    age_limit: float = 0.0
    restarts: int = 0
    """How many children have sat here, beside the first."""
    last_end: End | None = None

    @property
    def name(self) -> str:
        """What people call it: a number only where there can be several."""
        return self.kind.name if self.kind.count == 1 else f"{self.kind.name} {self.number}"

    @property
    def alive(self) -> bool:
        """Whether a process fills it."""
        return self.state is not State.EMPTY

    @property
    def counts(self) -> bool:
        """Whether it is, or is about to be, of use."""
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
    """The kernel killed it for want of memory."""


@dataclass(frozen=True, slots=True)
class Death:
    """What is left of a child: enough to settle its jobs and to explain it."""

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
    """How a child ended, for people."""

    name: str
    pid: int
    cause: str
    sentence: str
    at: float
    job: int = 0
    job_kind: str = ""
