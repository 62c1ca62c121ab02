"""Where a job that is enqueued comes from: the job whose handler enqueues it, and the trace that one belongs to.

Asked when something is enqueued and never before, so a job that enqueues nothing pays nothing. A worker says once, at its start, whom to
ask. What it says is of the context and not of the process: a thread that a handler has started begins with a context of its own, and what
it enqueues may be about anything; whoever wants it noted gives `set_off_by`, or runs the thread in `contextvars.copy_context()`.

An id means nothing in another database, so the origin is left out where somebody enqueues into one of another name, or into another schema.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token


class Origin(NamedTuple):
    """The job that runs, and where it lives."""

    job: int
    traceparent: str | None
    database: bytes
    """Its name, as libpq knows it."""
    schema: str


_asked: ContextVar[Callable[[], Origin | None] | None] = ContextVar("jobherd_origin", default=None)


def ask(whom: Callable[[], Origin | None]) -> Token[Callable[[], Origin | None] | None]:
    """From here on, `whom` says which job runs; None between jobs."""
    return _asked.set(whom)


def forget(before: Token[Callable[[], Origin | None] | None]) -> None:
    """End what `ask` began."""
    _asked.reset(before)


def origin(database: bytes, schema: str) -> Origin | None:
    """Return the job that what is enqueued here comes from; None outside of a handler, or if that job is of another database or schema."""
    whom = _asked.get()
    found = None if whom is None else whom()
    return found if found is not None and found.database == database and found.schema == schema else None
