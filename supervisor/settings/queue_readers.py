"""Reads names of queues with their numbers, and amounts by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from jobherd.supervisor.settings.readers import Reader, words

_AMOUNT: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}=[0-9]+(\.[0-9]+)?")
_QUEUE: Final = re.compile(r"(?:[a-z0-9_][a-z0-9_.-]{0,62}\*?|\*)(?::[1-9]\d?)?")
_NUMBERED: Final = re.compile(r"([a-z0-9_][a-z0-9_.-]{0,62}\*?|\*)=(-?\d{1,6})")


def queues() -> Reader:
    """Read queue names, or prefixes with a `*`, each optionally with a number of workers."""
    reader = words(
        "queue names (lower-case letters, digits and _ . -, at most 63 characters), or prefixes with a * at the end, "
        'each optionally with its number of reserved workers ("high:2,default,batch*")',
        ",",
        pattern=_QUEUE,
    )

    def read(value: object) -> tuple[str, ...]:
        found: tuple[str, ...] = reader.read(value)
        _once([queue.partition(":")[0] for queue in found if ":" in queue])
        return found

    return Reader(reader.allowed, read, reader.separator)


def numbers(low: int, high: int) -> Reader:
    """Read a number for each of several queues."""
    reader = words(
        f'queues, or prefixes with a *, each with a number from {low:,} to {high:,} ("media=2,batch*=10")',
        ",",
    )

    def read(value: object) -> tuple[tuple[str, int], ...]:
        listed = [f"{name}={count}" for name, count in value.items()] if isinstance(value, Mapping) else value
        found = []
        for word in reader.read(listed):
            match = _NUMBERED.fullmatch(word)
            if match is None or not low <= int(match[2]) <= high:
                message = f"{word!r} is not one"
                raise ValueError(message)
            found.append((match[1], int(match[2])))
        _once([name for name, _ in found])
        return tuple(found)

    return Reader(reader.allowed, read, ",")


def amounts() -> Reader:
    """Read amounts by name, like memory_mb=4000,gpus=1."""
    return words("amounts like memory_mb=4000 (names of lower-case letters, digits and _ . -)", ",", pattern=_AMOUNT)


def _once(names: Sequence[str]) -> None:
    """Raise ValueError if a name has two values: it is not clear which one is meant."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{name} is named twice"
            raise ValueError(message)
