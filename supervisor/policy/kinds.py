"""The kinds of child processes, one row each.

A new kind is a row here and a module in `workers`. No other code compares kinds: it reads the
fields of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.policy.limits import Limits


class Demand(Protocol):
    """What the number of children of a kind may depend on."""

    limits: Limits
    wanted: int
    """Number of workers."""
    stores: bool
    """A worker serves a table of the application."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the supervisor knows about a kind of child.

    `jobherd.workers.main` defines what it does.
    """

    name: str
    count: Callable[[Demand], int]
    """Returns the number of such children."""
    works: bool = False
    """It claims jobs, so it is woken, has limits, and is drained first. There can be several."""
    loads: bool = False
    """It loads the handlers, so a reload replaces it."""
    sees_all: bool = False
    """It reads the status board of every slot."""
    hears_deaths: bool = False
    """It receives the jobs that died with their process."""


WORKER = Kind("worker", lambda fleet: fleet.wanted, works=True, loads=True)
MAINTENANCE = Kind("maintenance", lambda _: 1, sees_all=True, hears_deaths=True)
WEB = Kind("web", lambda fleet: int(fleet.limits.web), sees_all=True)
RESETTER = Kind("resetter", lambda fleet: int(fleet.stores), sees_all=True, loads=True)

KINDS = (WORKER, MAINTENANCE, WEB, RESETTER)
