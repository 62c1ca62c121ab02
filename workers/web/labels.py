"""Chooses which names become labels of metrics: the first that appear, up to a limit.

A monitoring system stores every name that was ever shown. Showing the largest names at each moment
would bound one scrape, but a flood of made-up names would fill that store scrape by scrape. So a
name with a label keeps it for the life of this process, and a name without one never gets one. A
counter that moved between labels would go down in one and jump in the other.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

OTHERS: Final = "(other)"
"""The label of all names without their own. No kind, queue or tenant can have this name."""


class Labels(Generic[T]):
    """Names that have their own labels, at most `most`.

    >>> labels = Labels[str](1)
    >>> labels.has("mail"), labels.has("media"), labels.has("mail")
    (True, False, True)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[T, None] = {}

    def has(self, name: T) -> bool:
        """Return whether a name has its own label. A new name gets one if the limit allows it."""
        if name in self._named:
            return True
        if len(self._named) < self._most:
            self._named[name] = None
            return True
        return False

    def all(self) -> list[T]:
        """Return the names that have a label, in order of appearance."""
        return list(self._named)


def label(labels: Labels[str], name: str) -> str:
    """Return the label of a name."""
    return name if labels.has(name) else OTHERS
