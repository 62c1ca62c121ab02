"""Parses the notifications that the supervisor's session receives; defines the events of the session itself.

PostgreSQL lets any login of the database notify on any channel, with any text. So a notification is
parsed into one of a few types, each of which only causes a query. An `Event` concerns the session
itself and is kept in a separate list: no notification can become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs are ready in a queue; `*` means any queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class TableWork:
    """A record is ready in a table that the application owns."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A supervisor has renewed its lease."""

    supervisor: str


@dataclass(frozen=True, slots=True)
class Due:
    """A job is due earlier than all others."""


@dataclass(frozen=True, slots=True)
class Gates:
    """A queue or kind was paused or resumed, or its concurrency limit changed."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A running job should be canceled."""


@dataclass(frozen=True, slots=True)
class Command:
    """There is a fleet command for a supervisor."""

    supervisor: str


Notification: TypeAlias = Work | TableWork | Renewal | Due | Gates | Cancel | Command


@dataclass(frozen=True, slots=True)
class Pooler:
    """A pooler is between the session and the server."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The server has rejected a statement of the supervisor."""

    statement: str
    why: str


Event: TypeAlias = Pooler | Rejected

_BARE: dict[str, Notification] = {"@due": Due(), "@pause": Gates(), "@cancel": Cancel()}


def parse(payload: str) -> Notification | None:
    """Return the parsed notification; None if this version has no such type.

    >>> parse("mail"), parse("@renewal:7"), parse("@refused:claim_jobs: anything")
    (Work(queue='mail'), Renewal(supervisor='7'), None)
    """
    if not payload.startswith("@"):
        return Work(payload)
    name, colon, rest = payload.partition(":")
    match name:
        case "@table" if colon:
            return TableWork()
        case "@renewal":
            return Renewal(rest)
        case "@order":
            return Command(rest)
    return _BARE.get(payload)
