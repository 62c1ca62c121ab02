"""Decides in which order a worker looks at the queues when they take turns.

Turns are start-time fair queueing over the time that a worker spends. Each queue has a mark, which grows by the seconds that its jobs took,
divided by its weight. The queue with the lowest mark comes first. A queue without a mark comes before all others, and a queue that comes back
begins where the queue served last began, so no queue saves up turns while it is empty. Every worker keeps its own marks: workers share
nothing, and nothing is written. This module knows no connection and reads no clock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST: Final = 64
"""Marks that are kept and sent: a claim compares every queue with them. Dropping the lowest mark lets its queue go first again."""


class Turns:
    """The marks of one worker.

    served: the queues to serve, or prefixes of them; empty: all.
    weights: by queue or prefix; 1 without one.
    tiers: numbers by served queue or prefix; 0 without one. Queues with a lower number come first, and take turns only with their equals.
    """

    def __init__(self, served: Sequence[str], weights: Mapping[str, int], tiers: Mapping[str, int]) -> None:
        self._weights = weights
        self._tier = {queue: tiers.get(queue, 0) for queue in served}
        self.tiers = list(self._tier.values()) if any(self._tier.values()) else None
        """The number of each served queue or prefix; None if they are all equal."""
        self._marks: dict[str, float] = {}
        self._began: dict[int, float] = {}
        """By tier, the mark of the queue served last, as its turn began."""
        self._current = ""
        """The queue that the last claim took jobs of, until its time is charged."""
        self.last = ""
        """The same, charged or not."""

    def order(self, spent: float) -> list[str]:
        """Return the queues that have a mark, the lowest first. In a claim, queues that are not among them come before them.

        spent: seconds since the last claim was answered. They are charged to the queue it took jobs of.
        """
        marks = self._marks
        if self._current:
            marks[self._current] += spent / _of(self._weights, self._current, 1)
            self._current = ""
        if not self.shared:
            return list(marks)
        order = sorted(marks, key=marks.__getitem__)
        for queue in order[:-MOST]:
            del marks[queue]
        return order[-MOST:]

    @property
    def shared(self) -> bool:
        """Whether jobs of more than one queue were found since none was found at all."""
        return len(self._marks) > 1

    def order_served(self, spent: float) -> list[str]:
        """Return the served queues in their order. They must be names, not prefixes. `spent`: as in `order`."""
        place = {queue: place for place, queue in enumerate(self.order(spent), 1)}
        return sorted(self._tier, key=lambda queue: (self._tier[queue], place.get(queue, 0), random.random()))

    def note(self, queue: str) -> None:
        """Note that a claim took jobs of this queue; of none if it is empty."""
        self.last = queue
        if not queue:
            self._marks.clear()
            return
        tier = _of(self._tier, queue, 0) if self.tiers else 0
        began = self._began.get(tier, 0.0)
        self._began[tier] = self._marks[queue] = max(began, self._marks.get(queue, began))
        self._current = queue


def _of(numbers: Mapping[str, int], queue: str, default: int) -> int:
    """Return the number of a queue: that of its name, or else that of the first prefix that fits."""
    if not numbers:
        return default
    found = (number for name, number in numbers.items() if name.endswith("*") and queue.startswith(name[:-1]))
    return numbers[queue] if queue in numbers else next(found, default)
