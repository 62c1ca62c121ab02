"""The kinds of child processes (worker, maintenance, web, resetter), one row each.

A new kind is a row here and a module in `workers`. Other code never compares kinds: it reads the
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
    has_table_stores: bool
    """A worker serves a table of the application."""


@dataclass(frozen=True, slots=True)
class ChildKind:
    """How the supervisor treats a kind of child.

    `jobherd.workers.main` defines what such a child does.
    """

    name: str
    count: Callable[[Demand], int]
    """Returns the number of such children."""
    works: bool = False
    """The child claims jobs, so it is woken, has limits, and is drained first. There can be several."""
    loads: bool = False
    """The child loads the handlers, so a reload replaces it."""
    sees_all: bool = False
    """The child reads the status board of every slot."""
    receives_deaths: bool = False
    """The child receives the jobs that died with their process."""


WORKER = ChildKind("worker", lambda fleet: fleet.wanted, works=True, loads=True)
MAINTENANCE = ChildKind("maintenance", lambda _: 1, sees_all=True, receives_deaths=True)
WEB = ChildKind("web", lambda fleet: int(fleet.limits.web), sees_all=True)
RESETTER = ChildKind("resetter", lambda fleet: int(fleet.has_table_stores), sees_all=True, loads=True)

KINDS = (WORKER, MAINTENANCE, WEB, RESETTER)
