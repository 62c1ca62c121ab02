"""The parent of an enqueued job: the job whose handler enqueues it, and that job's trace.

It is looked up only when something is enqueued, so a job that enqueues nothing pays nothing. A
worker registers the lookup function once, when it starts. The function belongs to the context and
not to the process. A thread started by a handler begins with a new context, and what it enqueues
may be unrelated. To record the parent there, pass `parent_id`, or run the thread in
`contextvars.copy_context()`.

An id means nothing in another database. So the parent is left out for jobs enqueued into a database
of another name or into another schema.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token


class Origin(NamedTuple):
    """The running job, and the database it is in."""

    job: int
    traceparent: str | None
    database: bytes
    """Name of the database, as libpq reports it."""
    schema: str


_lookup: ContextVar[Callable[[], Origin | None] | None] = ContextVar("jobherd_origin", default=None)


def set_lookup(lookup: Callable[[], Origin | None]) -> Token[Callable[[], Origin | None] | None]:
    """Let `origin` get the running job from `lookup`, which returns None between jobs, until `reset_lookup`."""
    return _lookup.set(lookup)


def reset_lookup(before: Token[Callable[[], Origin | None] | None]) -> None:
    """Undo `set_lookup`."""
    _lookup.reset(before)


def has_origin() -> bool:
    """Return whether the caller runs in a handler."""
    return _lookup.get() is not None


def origin(database: bytes, schema: str) -> Origin | None:
    """Return the parent of a job that is enqueued here.

    None outside of a handler, or if the running job is in another database or schema.
    """
    lookup = _lookup.get()
    found = None if lookup is None else lookup()
    return found if found is not None and found.database == database and found.schema == schema else None
