"""How a handler has suspended its job: a value of `steps.py`, which settles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jobherd.workers.database.wire import Request


class Suspension(NamedTuple):
    """How a handler has suspended its job."""

    message: str
    delay: float
    writes: tuple[Request, ...] = ()
    """Statements of the settlement's transaction, with their parameters. Each must return a row."""
