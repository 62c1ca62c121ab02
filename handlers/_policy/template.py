"""Fills the templates in the payload of a schedule: `{scheduled_for:%Y-%m-%d}`, `{previous}`, `{schedule}`, `{missed}`.

The grammar is its own: `str.format` would give a payload access to attributes. It reads no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

_PART: Final = re.compile(r"\{\{|\}\}|\{([a-z_]*)(?::([^{}]*))?\}|[{}]")
_TIMES: Final = frozenset({"scheduled_for", "previous"})
_NAMES: Final = _TIMES | {"schedule", "missed"}
_DEEPEST: Final = 100


@dataclass(frozen=True, slots=True)
class Instant:
    """What the templates of one run can name. Times are in the zone of the schedule."""

    schedule: str
    scheduled_for: datetime
    previous: datetime
    missed: int = 0


def check(payload: object, *, field: str) -> None:
    """Raise ValueError if a template in a payload is invalid."""
    _walk(payload, lambda text: _PART.sub(lambda part: _checked(part, text, field), text))


def fill(payload: object, instant: Instant) -> object:
    """Return the payload with its templates filled. A text that is only `{missed}` becomes a number."""

    def text_of(text: str) -> object:
        if text == "{missed}":
            return instant.missed
        return _PART.sub(lambda part: _filled(part, instant), text)

    return _walk(payload, text_of)


def _walk(value: object, change: Callable[[str], object], depth: int = 0) -> object:
    if isinstance(value, str):
        return change(value)
    if depth > _DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: _walk(one, change, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(one, change, depth + 1) for one in value]
    return value


def _checked(part: re.Match[str], text: str, field: str) -> str:
    if part[0] in {"{{", "}}"}:
        return ""
    if part[1] not in _NAMES or (part[2] is not None and part[1] not in _TIMES):
        message = (
            f"{field} {text[:80]!r}: {part[0]!r} is not a template; there are {{scheduled_for:%Y-%m-%d}}, "
            "{previous:%H:%M}, {schedule} and {missed}. Double a brace that is meant as one"
        )
        raise ValueError(message)
    return ""


def _filled(part: re.Match[str], instant: Instant) -> str:
    if part[0] in {"{{", "}}"}:
        return part[0][0]
    match part[1]:
        case "schedule":
            return instant.schedule
        case "missed":
            return str(instant.missed)
        case "scheduled_for" | "previous" as name:
            moment = instant.scheduled_for if name == "scheduled_for" else instant.previous
            return moment.strftime(part[2]) if part[2] else moment.isoformat()
        case _:  # Written by SQL, which checks no template.
            return part[0]
