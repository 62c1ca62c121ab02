"""The kinds of children: one row each. A new kind is a row here and a module in `workers`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What the parent knows of a kind of child. What such a child does stands in `jobherd.workers.main`."""

    name: str
    count: int | None
    """How many there are; None: as many as the settings say."""
    works: bool = False
    """It claims jobs: it is nudged, limited, drained first."""
    loads: bool = False
    """It loads the handlers: when they are read anew, it is replaced."""
    sees_all: bool = False
    """It looks at every slot's board."""
    hears_deaths: bool = False
    """It is told of jobs that died with their process."""


WORKER = Kind("worker", None, works=True, loads=True)
KEEPER = Kind("keeper", 1, sees_all=True, hears_deaths=True)
WEB = Kind("web", 1, sees_all=True)

RESETTER = Kind("resetter", 1, sees_all=True, loads=True)

KINDS = (WORKER, KEEPER, WEB, RESETTER)
