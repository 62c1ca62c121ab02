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


def duration(time: timedelta | float) -> str:
    """Return a duration with its unit: the one way in which durations are shown.

    The second unit is left out if the first counts ten or more. A setting is written as users type
    it, "90s" (supervisor/settings/readers.py).

    >>> duration(0), duration(0.00042), duration(0.0123), duration(1.5), duration(59.97), duration(75)
    ('0 s', '420 µs', '12 ms', '1.5 s', '1 min', '1 min 15 s')
    >>> duration(3128), duration(3 * 3600 + 60), duration(-3 * 86400), duration(12.4 * 86400)
    ('52 min', '3 h 1 min', '-3 d', '12 d')
    """
    value = time.total_seconds() if isinstance(time, timedelta) else float(time)
    if value < 0:
        return f"-{duration(-value)}"
    if value < 0.0009995:
        return f"{value * 1e6:.0f} µs" if value else "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    whole = round(value)
    for unit, length, lesser, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {lesser}" if rest and whole < 10 * length else "")
    rest = whole % 60
    return f"{whole // 60} min" + (f" {rest} s" if rest and whole < 600 else "")
