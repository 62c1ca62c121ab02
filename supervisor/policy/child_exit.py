"""Defines how a child ended: the exit status, the facts to recover its jobs, and the text for users.

`exits.py` decides what an exit means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.supervisor.policy.stop_sequence import StopSequence


REQUESTED: Final = frozenset({"requested", "recycled"})
"""Causes of an exit that was requested, by the supervisor or by the child itself: nothing is wrong."""


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
    """The facts about a dead child that are needed to settle its jobs and to explain its death."""

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
    failures: int = 0
    """Consecutive deaths in the slot without a healthy period in between, this one included."""
    rest_until: float = 0.0
    """When the slot may be filled again."""


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
