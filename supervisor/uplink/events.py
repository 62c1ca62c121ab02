"""Parses the messages of the uplink to the supervisor. A line that is none of them is ignored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from jobherd.supervisor.database.requests import Row


@dataclass(frozen=True, slots=True)
class Answered:
    """A request has an answer. None: it is permanently rejected."""

    id: int
    rows: list[Row] | None


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The stream to a gateway was opened or lost."""

    connected: bool
    session: str
    """What the next uplink needs to continue the session."""
    trouble: str


@dataclass(frozen=True, slots=True)
class JobCanceled:
    """A job that a worker holds should be canceled."""

    incarnation: int
    token: int
    job: int


@dataclass(frozen=True, slots=True)
class JobLost:
    """The gateway has given a job that a worker holds to another worker."""

    incarnation: int
    token: int
    job: int


@dataclass(frozen=True, slots=True)
class GatesChanged:
    """A pause or limit has changed: unstarted jobs must be released."""


@dataclass(frozen=True, slots=True)
class HostRejected:
    """The gateway rejects this host: its token, its certificate or its kinds."""

    error: str


Event: TypeAlias = SessionChanged | JobCanceled | JobLost | GatesChanged | HostRejected


def parse(line: bytes) -> Answered | Event | None:
    """Return the event of a line; None if this version has no such event."""
    try:
        return _event(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _event(message: dict[str, Any]) -> Answered | Event | None:
    match message.get("event"):
        case None:
            rows = None if message.get("refused") else [tuple(row) for row in message["rows"]]
            return Answered(int(message["id"]), rows)
        case "session":
            return SessionChanged(
                bool(message["connected"]), str(message["session"]), str(message.get("trouble") or "")
            )
        case "cancel":
            return JobCanceled(int(message["incarnation"]), int(message["token"]), int(message["job"]))
        case "lost":
            return JobLost(int(message["incarnation"]), int(message["token"]), int(message["job"]))
        case "release_rest":
            return GatesChanged()
        case "rejected":
            return HostRejected(str(message["error"]))
    return None
