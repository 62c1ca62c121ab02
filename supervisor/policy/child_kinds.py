"""Lists the kinds of child processes: worker, maintenance, web, resetter, gateway, uplink.

A new kind is a row here, an entry in `workers/main.py` and a module in `workers`. A policy never
compares kinds: it reads the fields of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.policy.limits import Limits


class Demand(Protocol):
    """The facts on which the number of children of a kind may depend."""

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
    """The child runs jobs, so it claims, drains, and has limits. There can be several."""
    claims: bool = False
    """The child claims jobs, so it is woken for new ones while its status board shows idle. Always so if it works."""
    drains: bool = False
    """The child has jobs to finish, so a shutdown dismisses it first and gives it `drain_timeout`. Always so
    if it works.
    """
    loads: bool = False
    """The child loads the handlers, so a reload replaces it."""
    sees_all: bool = False
    """The child reads the status board of every slot."""
    receives_deaths: bool = False
    """The child receives the jobs that died with their process."""
    recovered: bool = True
    """The database or the gateway has a registration of the child. After its death, its sessions and jobs are
    released.
    """

    def __post_init__(self) -> None:
        if self.works:
            object.__setattr__(self, "claims", True)
            object.__setattr__(self, "drains", True)


WORKER = ChildKind("worker", lambda demand: demand.wanted, works=True, loads=True)
MAINTENANCE = ChildKind(
    "maintenance", lambda demand: int(not demand.limits.has_uplink), sees_all=True, receives_deaths=True
)
WEB = ChildKind("web", lambda demand: int(demand.limits.web), sees_all=True)
RESETTER = ChildKind("resetter", lambda demand: int(demand.has_table_stores), sees_all=True, loads=True)
GATEWAY = ChildKind("gateway", lambda demand: int(demand.limits.has_gateway), claims=True, drains=True)
UPLINK = ChildKind("uplink", lambda demand: int(demand.limits.has_uplink), sees_all=True, recovered=False)
"""It carries jobs and outcomes between the workers and a gateway, so it is dismissed after them."""

KINDS = (WORKER, MAINTENANCE, WEB, RESETTER, GATEWAY, UPLINK)
