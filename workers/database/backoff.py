"""Delays between tries of something that is expected to work again, such as a database that is away.

Not for the retries of jobs: their delays are in the handlers' policy. Nothing here waits.
"""

from __future__ import annotations

import random


class Backoff:
    """Delays that start with `initial` seconds and double each time, up to `longest`.

    Each delay is multiplied by a random factor within `spread`, so that processes which failed
    together do not all try again at once.
    """

    def __init__(self, initial: float, longest: float, *, spread: tuple[float, float] = (1.0, 1.0)) -> None:
        self.initial = initial
        self.longest = longest
        self.delay = 0.0
        """The last delay in seconds, before the random factor. 0: no try has failed since `reset`."""
        self._spread = spread

    def next(self, *, limit: float = float("inf")) -> float:
        """Return the seconds until the next try.

        limit: the longest delay for this try. Later delays grow from there.
        """
        self.delay = min(self.longest, limit, max(self.initial, 2 * self.delay))
        return min(self.longest, self.delay * random.uniform(*self._spread))

    def reset(self) -> None:
        """Start with `initial` again, because a try has succeeded."""
        self.delay = 0.0
