"""Prints one line per check as soon as its result is known, and counts failed checks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 180.0
"""Seconds after which a wait has failed. A successful wait ends earlier."""
T = TypeVar("T")


class Checks:
    """The lines of one run."""

    def __init__(self, title: str) -> None:
        self._broken: list[str] = []
        self._begun = time.monotonic()
        print(f"# {title}", flush=True)

    def holds(self, what: str, holds: object, found: object = "") -> None:
        print(f"{'holds ' if holds else 'BROKEN'}  {what}" + (f": {found}" if str(found) else ""), flush=True)
        if not holds:
            self._broken.append(what)

    def end(self) -> int:
        """Print the number of failed checks and return the exit code."""
        print(f"# {len(self._broken)} broken, {time.monotonic() - self._begun:.0f} s", flush=True)
        return 1 if self._broken else 0


def wait(condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """Return the first true value of the condition."""
    until = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {limit:g} s for {what}")
        time.sleep(0.1)
    return found
