"""Which names become labels of metrics: the first so many that come along. Whoever stores the metrics keeps every name ever shown.

Showing the largest of each moment instead would bound one scrape, and let a flood of made-up names fill somebody's store one scrape after
the other. So a name that has a label keeps it for the life of this process, and a name that has none never gets one: a counter that moved
between labels would go down in one and jump in the other.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

OTHERS: Final = "(other)"
"""The label of all names that have none of their own. No kind, queue or tenant can be called so."""


class Labels(Generic[T]):
    """Names that have labels of their own, `most` at the most.

    >>> labels = Labels[str](1)
    >>> labels.has("mail"), labels.has("media"), labels.has("mail")
    (True, False, True)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[T, None] = {}

    def has(self, name: T) -> bool:
        """Return whether a name has a label of its own; it gets one if one is left."""
        if name in self._named:
            return True
        if len(self._named) < self._most:
            self._named[name] = None
            return True
        return False

    def all(self) -> list[T]:
        """Return the names that have one, in the order in which they came."""
        return list(self._named)


def label(labels: Labels[str], name: str) -> str:
    """Return what a name is called in a label."""
    return name if labels.has(name) else OTHERS
