"""Words for numbers and times in sentences about a job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_ORDINALS: Final = {1: "first", 2: "second", 3: "third"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ENDINGS: Final = {1: "st", 2: "nd", 3: "rd"}


def nth(number: int) -> str:
    """Return an ordinal number.

    >>> nth(1), nth(12), nth(22)
    ('first', '12th', '22nd')
    """
    ending = "th" if 10 < number % 100 < 14 else _ENDINGS.get(number % 10, "th")
    return _ORDINALS.get(number, f"{number}{ending}")


def count(number: int, one: str, many: str) -> str:
    """Return a number with its noun, in the singular or the plural."""
    return f"{number:,} {one if number == 1 else many}"


def moment_or_none(text: object) -> datetime | None:
    """Return a timestamp, or None if the text is not one."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def size(number: float) -> str:
    """Return a number of bytes in binary units.

    >>> size(512), size(1536), size(41.2 * 2**20), size(5 * 2**30)
    ('512 B', '1.5 KiB', '41.2 MiB', '5.0 GiB')
    """
    value, place = float(number), 0
    while abs(value) >= 1023.5 and place < len(_UNITS) - 1:
        value, place = value / 1024, place + 1
    return f"{value:.1f} {_UNITS[place]}" if place and abs(value) < 99.95 else f"{value:.0f} {_UNITS[place]}"


def span(time: timedelta | float) -> str:
    """Return a duration in its largest unit, without its sign."""
    seconds = abs(time.total_seconds() if isinstance(time, timedelta) else time)
    if seconds < 0.0005:
        return "less than a millisecond"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
