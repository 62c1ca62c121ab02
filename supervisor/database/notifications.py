"""What the supervisor's database session hears: notifications of the server, and events of the session itself.

PostgreSQL lets any login of the database notify on any channel, with any text. So a notification is parsed into one of a few types, each of which
asks for a look at the database and nothing more. What the session has to say of itself is an `Event`, in a list of its own: no text becomes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs are ready in a queue; `*`: in any."""

    queue: str


@dataclass(frozen=True, slots=True)
class TableWork:
    """A record is ready in a table that the application owns."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A supervisor has renewed its lease."""

    supervisor: str


@dataclass(frozen=True, slots=True)
class Due:
    """A job is due before all others."""


@dataclass(frozen=True, slots=True)
class Gates:
    """A queue or a kind was paused, resumed or capped."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A running job is to be cancelled."""


@dataclass(frozen=True, slots=True)
class Command:
    """There is a fleet command for a supervisor."""

    supervisor: str


Notification: TypeAlias = Work | TableWork | Beat | Due | Gates | Cancel | Command


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
    """Return what a notification says; None: nothing that this version knows.

    >>> parse("mail"), parse("@beat:7"), parse("@refused:claim_jobs: anything")
    (Work(queue='mail'), Beat(supervisor='7'), None)
    """
    if not payload.startswith("@"):
        return Work(payload)
    name, colon, rest = payload.partition(":")
    match name:
        case "@table" if colon:
            return TableWork()
        case "@beat":
            return Beat(rest)
        case "@order":
            return Command(rest)
    return _BARE.get(payload)
