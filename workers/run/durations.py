"""Averages how long jobs of each kind took lately in this worker, and which share of a claim each fills.

`claim/` decides the claim size from these numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._run.job import FOR_EVER

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST: Final = 0.00005
"""Least number of seconds that a job counts for, including its settlement."""
SHORT: Final = 0.05
_FULL: Final = 1.0001
"""Share of a claim that the jobs of a full call fill: slightly more than all of it. Otherwise
rounding could add one job too many to a claim.
"""


class Durations:
    """Moving averages by kind.

    alone: kinds that are claimed alone, because their jobs have their own transactions.
    sizes: the number of jobs per call, by kind, for batch handlers.
    by_kind: seconds. Kinds of which no job has run are not included.
    """

    def __init__(self, alone: set[str], sizes: Mapping[str, int]) -> None:
        self.alone = alone
        self.by_kind: dict[str, float] = {}
        self._sizes = sizes

    def expected(self, kind: str) -> float:
        """Return how many seconds jobs of a kind took lately; infinity for an unseen kind."""
        return self.by_kind.get(kind, FOR_EVER)

    def add(self, kind: str, ran: float) -> None:
        """Include a call that ran for `ran` seconds."""
        before = self.by_kind.get(kind, ran)
        self.by_kind[kind] = before + (ran - before) / 4

    def short(self) -> list[str]:
        """Return the kinds whose jobs were short lately."""
        return [kind for kind, seconds in self.by_kind.items() if seconds < SHORT]

    def shares(self, longest: float) -> dict[str, float]:
        """Return the share of a claim of `longest` seconds that a job of each kind is expected to fill.

        Kinds that leave no room for another job are not included. For a batch handler, a claim
        holds at least the jobs of one call.
        """
        shares = {
            kind: max(seconds, LEAST) / longest
            for kind, seconds in self.by_kind.items()
            if seconds < longest and kind not in self.alone
        }
        for kind, size in self._sizes.items():
            shares[kind] = min(_FULL, max(self.by_kind.get(kind, longest), LEAST) / longest) / size
        return shares
