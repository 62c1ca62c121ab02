"""The counters of a gateway, across all child processes of its slot: a region of the status board.

Each family has a fixed list of labels or bounds, so the region has a fixed size. Counting is a store
without a system call. No counter decreases, so metrics can be read at any moment.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "messages": ("received", "sent"),
    "results": ("recorded", "lost", "invalid", "unstorable"),
    "sessions": ("opened", "resumed", "ended"),
    "refused": ("authentication", "not_allowed", "limit", "invalid", "session", "unavailable"),
}
"""Labels by family."""
HISTOGRAMS: Final[Mapping[str, tuple[float, ...]]] = {
    "tasks_per_message": (1, 2, 5, 10, 20, 50, 100, 200, 500),
    "write_wait": (0.001, 0.01, 0.1, 1.0, 10.0),
}
"""Upper bounds of buckets by family. One more bucket counts the rest."""

_PLACES: Final = {
    each: place for place, each in enumerate((family, label) for family, labels in COUNTERS.items() for label in labels)
}
_BUCKETS: Final[dict[str, int]] = {}
"""Where the buckets of a histogram begin. Its sum comes after them."""
_end = len(_PLACES)
for _family, _bounds in HISTOGRAMS.items():
    _BUCKETS[_family] = _end
    _end += len(_bounds) + 2


class GatewayCounts:
    """The region that begins at `at`. The gateway writes it, and any process reads it."""

    SIZE: Final = 8 * _end

    def __init__(self, view: memoryview, at: int) -> None:
        region = view[at : at + self.SIZE]
        self._counts = region.cast("Q")
        self._sums = region.cast("d")

    def close(self) -> None:
        """Release the memory views."""
        self._counts.release()
        self._sums.release()

    def count(self, family: str, label: str, number: int = 1) -> None:
        """Called in the gateway: it happened so many times."""
        self._counts[_PLACES[family, label]] += number

    def observe(self, family: str, value: float) -> None:
        """Called in the gateway: enter a value into a histogram."""
        bounds, at = HISTOGRAMS[family], _BUCKETS[family]
        self._counts[at + bisect_left(bounds, value)] += 1
        self._sums[at + len(bounds) + 1] += value

    def counter(self, family: str) -> dict[str, int]:
        """Return the counts of a family, by label."""
        return {label: int(self._counts[_PLACES[family, label]]) for label in COUNTERS[family]}

    def histogram(self, family: str) -> tuple[tuple[int, ...], float]:
        """Return the count of each bucket, and the sum of the values."""
        at, size = _BUCKETS[family], len(HISTOGRAMS[family]) + 1
        return tuple(self._counts[at : at + size]), float(self._sums[at + size])
