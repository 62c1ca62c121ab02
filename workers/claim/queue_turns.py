"""Decides the order in which a worker checks the queues when they take turns.

Turns are start-time fair queueing over the time that a worker spends. Each queue has a virtual
time, which grows by the seconds that its jobs took, divided by its weight. The queue with the lowest
virtual time comes first. A queue without one comes before all others. A queue that returns starts
at the virtual time at which the queue served last began, so no queue saves up turns while it is
empty. Every worker keeps its own virtual times: workers share nothing, and nothing is written. This
module uses no connection and reads no clock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST: Final = 64
"""Number of virtual times that are kept and sent, because a claim compares every queue with them. If
the lowest one is dropped, its queue goes first again.
"""


class QueueTurns:
    """The virtual times of the queues, as one worker counts them.

    Args:
        served: the queues to serve, or prefixes of them. Empty: all queues.
        weights: by queue or prefix. Default 1.
        tiers: numbers by served queue or prefix. Default 0. Queues with a lower number come first
            and take turns only with queues of the same number.
    """

    def __init__(self, served: Sequence[str], weights: Mapping[str, int], tiers: Mapping[str, int]) -> None:
        self._weights = weights
        self._tier = {queue: tiers.get(queue, 0) for queue in served}
        self.tiers = list(self._tier.values()) if any(self._tier.values()) else None
        """The number of each served queue or prefix. None if they are all equal."""
        self._virtual_times: dict[str, float] = {}
        self._began: dict[int, float] = {}
        """By tier, the virtual time of the queue served last, as it was when its turn began."""
        self._current = ""
        """The queue of the last claim's jobs, until its time is charged."""
        self.last = ""
        """The same queue, charged or not."""

    def order(self, spent: float) -> list[str]:
        """Return the queues that have a virtual time, the lowest first.

        A claim puts all other queues before them.

        Args:
            spent: seconds since the answer to the last claim. They are charged to the queue of its
                jobs.
        """
        virtual_times = self._virtual_times
        if self._current:
            virtual_times[self._current] += spent / _of(self._weights, self._current, 1)
            self._current = ""
        if not self.shared:
            return list(virtual_times)
        order = sorted(virtual_times, key=virtual_times.__getitem__)
        for queue in order[:-MOST]:
            del virtual_times[queue]
        return order[-MOST:]

    @property
    def shared(self) -> bool:
        """Whether jobs of more than one queue were found since the last empty claim."""
        return len(self._virtual_times) > 1

    def order_served(self, spent: float) -> list[str]:
        """Return the served queues in their order.

        They must be names, not prefixes. `spent`: as in `order`.
        """
        place = {queue: place for place, queue in enumerate(self.order(spent), 1)}
        return sorted(self._tier, key=lambda queue: (self._tier[queue], place.get(queue, 0), random.random()))

    def note(self, queue: str) -> None:
        """Note the queue of the jobs that a claim took. Empty: the claim took none."""
        self.last = queue
        if not queue:
            self._virtual_times.clear()
            return
        tier = _of(self._tier, queue, 0) if self.tiers else 0
        began = self._began.get(tier, 0.0)
        self._began[tier] = self._virtual_times[queue] = max(began, self._virtual_times.get(queue, began))
        self._current = queue


def _of(numbers: Mapping[str, int], queue: str, default: int) -> int:
    """Return the number of a queue.

    That of its name, or else that of the first prefix that matches.
    """
    if not numbers:
        return default
    found = (number for name, number in numbers.items() if name.endswith("*") and queue.startswith(name[:-1]))
    return numbers[queue] if queue in numbers else next(found, default)
