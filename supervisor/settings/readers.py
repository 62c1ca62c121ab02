"""Reads the value of a setting: from the text of a flag or variable, or from a TOML value.

Each reader describes once what it allows, for errors and documentation. It must not know which
setting it reads, nor where the value came from: `jobherd.supervisor.settings.definitions` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobherd.handlers._enqueue.dsn import unknown_parameter, without_driver
from jobherd.handlers._policy import durations
from jobherd.sql import check_schema

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]{0,3})\s*", re.IGNORECASE)
_AMOUNT: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}=[0-9]+(\.[0-9]+)?")
_QUEUE: Final = re.compile(r"(?:[a-z0-9_][a-z0-9_.-]{0,62}\*?|\*)(?::[1-9]\d?)?")
_NUMBERED: Final = re.compile(r"([a-z0-9_][a-z0-9_.-]{0,62}\*?|\*)=(-?\d{1,6})")
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

_NO_SOCKET: Final = "/dev/null"
"""Not a folder, so no server can have its socket there."""


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
        _or_zero(
            f'a span of time from {show_span(low)} to {show_span(high)} ("30s", "5m", or a number of seconds)', zero
        ),
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


def queues() -> Reader:
    """Read queue names, or prefixes with a `*`, each optionally with a number of workers."""
    told = words(
        "queue names (lower-case letters, digits and _ . -, at most 63 characters), or beginnings of them with a * "
        "at the end, "
        'each perhaps with a number of workers for it alone ("high:2,default,batch*")', ",", pattern=_QUEUE,
    )  # fmt: skip

    def read(value: object) -> tuple[str, ...]:
        found: tuple[str, ...] = told.read(value)
        _once([queue.partition(":")[0] for queue in found if ":" in queue])
        return found

    return Reader(told.allowed, read, told.separator)


def numbers(low: int, high: int) -> Reader:
    """Read a number for each of several queues."""
    told = words(
        f'queues, or beginnings of them with a *, each with a number from {low:,} to {high:,} ("media=2,batch*=10")',
        ",",
    )

    def read(value: object) -> tuple[tuple[str, int], ...]:
        listed = [f"{name}={count}" for name, count in value.items()] if isinstance(value, Mapping) else value
        found = []
        for word in told.read(listed):
            match = _NUMBERED.fullmatch(word)
            if match is None or not low <= int(match[2]) <= high:
                message = f"{word!r} is not one"
                raise ValueError(message)
            found.append((match[1], int(match[2])))
        _once([name for name, _ in found])
        return tuple(found)

    return Reader(told.allowed, read, ",")


def amounts() -> Reader:
    """Read amounts by name, like memory_mb=4000,gpus=1."""
    return words("amounts like memory_mb=4000 (names of lower-case letters, digits and _ . -)", ",", pattern=_AMOUNT)


def path() -> Reader:
    """Read the path of a folder. It need not exist yet."""

    def read(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise TypeError
        try:
            return Path(value).expanduser()
        except RuntimeError:  # `~name` names no user, or the machine does not know the home folder of this one
            message = "there is no such home folder"
            raise ValueError(message) from None

    return Reader("the path of a folder", read)


def switch() -> Reader:
    """Read a yes-or-no value."""

    def read(value: object) -> bool:
        return value if isinstance(value, bool) else _TRUTH[str(value).strip().lower()]

    return Reader("true or false", read)


def address() -> Reader:
    """Read HOST:PORT, or off."""

    def read(value: object) -> tuple[str, int] | None:
        if value is False or (isinstance(value, str) and value.strip().lower() in {"off", "none", "no", "false"}):
            return None
        if not isinstance(value, str):
            raise TypeError
        host, colon, port = value.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            message = 'an IPv6 address is written in brackets: "[::1]:8790"'
            raise ValueError(message)
        if (
            not colon
            or not re.fullmatch(r"\d{1,5}", port)
            or int(port) > 65535
            or not re.fullmatch(r"[A-Za-z0-9.:_%-]*", host)
        ):
            raise ValueError
        return host or "0.0.0.0", int(port)  # noqa: S104  # ":8790" means all addresses, as in other tools

    return Reader('HOST:PORT ("127.0.0.1:8790", ":8790" for all addresses), or off', read)


def url_path() -> Reader:
    """Read a URL path that serves as a prefix: without a slash at its end."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)*/?", value.strip()):
            raise TypeError
        return value.strip().rstrip("/")

    return Reader('the path of an address ("/jobs")', read)


def dsn() -> Reader:
    """Read a libpq connection string. Its password must not appear in an error."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise TypeError
        text = without_driver(value)
        try:
            given = conninfo_to_dict(text)
        except psycopg.Error as problem:
            if unknown := unknown_parameter(problem):
                message = f"PostgreSQL has no connection parameter {unknown!r}; remove it from the address"
                raise SpokenError(message) from None
            raise ValueError from None  # libpq's message repeats a part of the value
        # These errors would fail every connection attempt: a supervisor would wait indefinitely for
        # a database that is not down.
        if not all(_is_port(port) for port in str(given.get("port", "")).split(",")):
            message = "a port is a whole number from 1 to 65,535"
            raise SpokenError(message)
        if "service" in given and not _is_service(str(given["service"])):
            message = (
                f"no service {given['service']!r} can be read from the file of services (PGSERVICEFILE, or "
                "~/.pg_service.conf)"
            )
            raise SpokenError(message)
        return text

    return Reader('a PostgreSQL address ("postgresql://user@host/name" or "host=... dbname=...")', read)


def _is_port(text: str) -> bool:
    digits = text.strip()
    return not digits or (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535)


def _is_service(name: str) -> bool:
    """Return whether libpq finds the service.

    It is tested with a connection to a socket that cannot exist, so no connection is made.
    """
    address = make_conninfo(service=name, host=_NO_SOCKET, hostaddr="", port="")
    # no host if libpq did not get as far as trying it
    return psycopg.pq.PGconn.connect_start(address.encode()).host == _NO_SOCKET.encode()


def schema() -> Reader:
    """Read the name of Jobherd's schema."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        return check_schema(value)

    return Reader(
        "a name of lower-case letters, digits and _, at most 41 characters, not starting with a digit or pg_", read
    )


def show_span(seconds: float) -> str:
    """Return a duration in its written form.

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


def _once(names: Sequence[str]) -> None:
    """Raise ValueError if a name has two values: it is not clear which one is meant."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{name} is named twice"
            raise ValueError(message)


def _or_zero(allowed: str, zero: str) -> str:
    return f"{allowed}, or 0: {zero}" if zero else allowed
