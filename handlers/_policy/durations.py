"""Parses durations to seconds, as a float.

This is the only place that reads "10m", "1h30m", a timedelta or a number. It must not depend on
what the duration is for: the caller names the field, and the error repeats that name.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

Duration: TypeAlias = str | float | timedelta
"""A duration: `"10m"`, `"1h30m"`, `"500ms"`, `"7d"`, a timedelta, or a number of seconds."""

LONGEST: Final = 100 * 365 * 86400.0
"""A hundred years. The database rejects much later dates, but only when the outcome is recorded,
which is too late."""

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*(ms|s|m|h|d|w)", re.ASCII)
_NUMBER: Final = re.compile(r"\s*-?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*", re.ASCII)


def seconds(value: object, *, field: str) -> float:
    """Return `value` in seconds.

    Args:
        value: text of numbers with units ms, s, m, h, d, w ("10m", "1h30m", "-5s"), a number of
            seconds (also as text), or a timedelta.
        field: the caller's name for it, used in the error.

    Raises:
        TypeError: any other type.
        ValueError: not a duration, not finite, or longer than 100 years.

    Example:
        >>> seconds("1h30m", field="delay")
        5400.0
    """
    match value:
        case bool():
            raise TypeError(_refusal(field, value))
        case int() | float():
            try:
                span = float(value)
            except OverflowError:
                span = math.inf
        case timedelta():
            span = value.total_seconds()
        case str():
            span = _read(value, field)
        case _:
            raise TypeError(_refusal(field, value))
    if not -LONGEST <= span <= LONGEST:  # also false for NaN
        message = f"{field} is out of range: a duration must be a finite number of seconds, at most 100 years"
        raise ValueError(message)
    return span


def at_least_zero(value: object, *, field: str) -> float:
    """Return `value` in seconds, a negative duration as 0.

    "An hour ago" and "now" mean the same.
    """
    return max(0.0, seconds(value, field=field))


def positive(value: object, *, field: str) -> float:
    """Return `value` in seconds. Raises ValueError unless it is more than 0."""
    span = seconds(value, field=field)
    if span <= 0:
        message = f"{field} must be more than 0 seconds, not {value!r}"
        raise ValueError(message)
    return span


def _read(text: str, field: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    body = text.strip()
    sign = 1.0
    if body.startswith("-"):
        sign, body = -1.0, body[1:]
    total, place = 0.0, 0
    while place < len(body):
        part = _PART.match(body, place)
        if part is None:
            raise ValueError(_refusal(field, text))
        total += float(part[1]) * _SECONDS[part[2]]
        place = part.end()
    if place == 0:
        raise ValueError(_refusal(field, text))
    return sign * total


def _refusal(field: str, value: object) -> str:
    shown = repr(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"
    return (
        f'{field} is not a duration ({shown}): write "500ms", "30s", "10m", "1h30m", "7d", '
        "a timedelta or a number of seconds"
    )
