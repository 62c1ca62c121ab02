"""Reads the value of a setting: from the text of a flag or variable, or from a TOML value.

Each reader describes once what it allows, for errors and documentation. It must not depend on which
setting it reads, nor on where the value came from: `jobherd.supervisor.settings.definitions` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy import durations

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]{0,3})\s*", re.IGNORECASE)
_TRUTH: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class SpokenError(ValueError):
    """An error about a value.

    The text never contains a password, so it is shown for secrets too.
    """


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one type of value."""

    allowed: str
    """The allowed values, to follow "must be"."""
    read: Callable[[object], Any]
    """Return the value, or raise ValueError or TypeError. Their text is shown only if it says more
    than `allowed`."""
    separator: str | None = None
    """The separator of list items in an environment variable."""


def whole(low: int, high: int, *, zero: str = "") -> Reader:
    """Read a whole number. With `zero`, 0 is allowed too and has that meaning."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError
        number = int(value) if not isinstance(value, str) or re.fullmatch(r"\s*-?\d[\d_]{0,17}\s*", value) else None
        if number is None or not (low <= number <= high or (zero and number == 0)):
            raise ValueError
        return number

    return Reader(_or_zero(f"a whole number from {low:,} to {high:,}", zero), read)


def fraction(low: float, high: float) -> Reader:
    """Read a number within the limits, such as a fraction."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        number = float(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return Reader(f"a number from {low:g} to {high:g}", read)


def span(low: float, high: float, *, zero: str = "") -> Reader:
    """Read a duration, in seconds."""

    def read(value: object) -> float:
        seconds = durations.seconds(value, field="it")
        if not (low <= seconds <= high or (zero and seconds == 0)):
            raise ValueError
        return seconds

    return Reader(
        _or_zero(f'a duration from {show_span(low)} to {show_span(high)} ("30s", "5m", or a number of seconds)', zero),
        read,
    )


def size(low: int, high: int, *, zero: str) -> Reader:
    """Read a number of bytes."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError
        match = _SIZE.fullmatch(str(value))
        if match is None or match[2].lower() not in _BYTES:
            raise ValueError
        number = int(float(match[1]) * _BYTES[match[2].lower()])
        if not (low <= number <= high or number == 0):
            raise ValueError
        return number

    return Reader(
        _or_zero(f'a size from {show_size(low)} to {show_size(high)} ("900MB", "2GiB", or a number of bytes)', zero),
        read,
    )


def choice(*names: str) -> Reader:
    """Read one of several words; case does not matter."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        return {name.lower(): name for name in names}[value.strip().lower()]

    return Reader(f"one of {', '.join(names)}", read)


def label() -> Reader:
    """Read a short printable text."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        if len(value) > 100 or not value.isprintable():
            raise ValueError
        return value.strip()

    return Reader("up to 100 printable characters", read)


def words(what: str, separator: str, *, pattern: re.Pattern[str] | None = None) -> Reader:
    """Read a list: from TOML, a repeated flag, or a text with a separator."""

    def read(value: object) -> tuple[str, ...]:
        parts: list[str] = []
        for part in [value] if isinstance(value, str) else value if isinstance(value, Sequence) else [None]:
            if not isinstance(part, str):
                raise TypeError
            given = part.split(separator) if isinstance(value, str) else [part]
            parts += [word.strip() for word in given if word.strip()]
        for word in parts:
            if pattern is not None and not pattern.fullmatch(word):
                message = f"{word!r} is not one"
                raise ValueError(message)
        return tuple(dict.fromkeys(parts))  # a repeated name counts once

    name = {",": "commas", ":": "colons"}[separator]
    return Reader(f"a list of {what}, with {name} between", read, separator)


def tokens() -> Reader:
    """Read tokens of clients or users, each with or without a name before it."""
    what = "tokens of 16 to 200 printable characters, without commas"
    return words(what, ",", pattern=re.compile(r"(?:[A-Za-z0-9_.@-]{1,40}=)?[!-+\--~]{16,200}"))


def path(what: str = "a folder") -> Reader:
    """Read a path. The file or folder need not exist yet."""

    def read(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise TypeError
        try:
            return Path(value).expanduser()
        except RuntimeError:  # `~name` names no user, or the machine does not know the home folder of this one
            message = "the home folder does not exist"
            raise ValueError(message) from None

    return Reader(f"the path of {what}", read)


def switch() -> Reader:
    """Read a yes-or-no value."""

    def read(value: object) -> bool:
        return value if isinstance(value, bool) else _TRUTH[str(value).strip().lower()]

    return Reader("true or false", read)


def show_span(seconds: float) -> str:
    """Return a duration as a setting is written; elsewhere `phrases.duration` writes durations.

    >>> show_span(300.0), show_span(0.5)
    ('5m', '500ms')
    """
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def show_size(number: int) -> str:
    """Return a number of bytes in its written form.

    >>> show_size(32_000_000)
    '32MB'
    """
    for unit in ("TB", "GB", "MB", "KB"):
        if number and number % _BYTES[unit.lower()] == 0:
            return f"{number // _BYTES[unit.lower()]}{unit}"
    return str(number)


def _or_zero(allowed: str, zero: str) -> str:
    return f"{allowed}, or 0: {zero}" if zero else allowed
