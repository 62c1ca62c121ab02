"""The kinds of child processes, one row each.

A new kind is a row here and a module in `workers`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What the supervisor knows about a kind of child.

    `jobherd.workers.main` defines what it does.
    """

    name: str
    count: int | None
    """Number of such children; None: the number comes from the settings."""
    works: bool = False
    """It claims jobs, so it is woken, has limits, and is drained first."""
    loads: bool = False
    """It loads the handlers, so a reload replaces it."""
    sees_all: bool = False
    """It reads the status board of every slot."""
    hears_deaths: bool = False
    """It receives the jobs that died with their process."""


WORKER = Kind("worker", None, works=True, loads=True)
KEEPER = Kind("keeper", 1, sees_all=True, hears_deaths=True)
WEB = Kind("web", 1, sees_all=True)

RESETTER = Kind("resetter", 1, sees_all=True, loads=True)

KINDS = (WORKER, KEEPER, WEB, RESETTER)
