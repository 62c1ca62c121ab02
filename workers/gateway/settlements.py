"""Decides which results are recorded by which statement of one transaction.

A claim that is reported as a whole, each job completed, is cheapest: `settle_completed` records a
large one, `settle_claims` records many small ones at once. All other results go through
`settle_jobs`, one statement for each claim. See `sessions.py` for how the parts fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.gateway.state import State

MOST_RESULTS: Final = 2000
"""Results of one transaction."""
LARGE: Final = 50
"""Jobs from which a whole claim is recorded by a separate statement."""


class Result(NamedTuple):
    """One result that waits for its commit.

    Attributes:
        session: the session that reported it.
        task: the job.
        claim: its fencing token.
        plain: whether the job completed, and printed and logged nothing.
        finished: what is recorded. This module does not read it.
    """

    session: int
    task: int
    claim: int
    plain: bool
    finished: Any = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """The statements of one transaction. Each group has the results of one claim, in its order."""

    large: tuple[tuple[Result, ...], ...]
    small: tuple[tuple[Result, ...], ...]
    rest: tuple[tuple[Result, ...], ...]


def batches_that_fit(sizes: Sequence[int]) -> int:
    """Return how many of the ResultBatches that wait are settled now: at least one, if there is one.

    sizes: their numbers of results, the oldest first. A batch is never divided.
    """
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > MOST_RESULTS and number:
            return number
    return len(sizes)


def plan_transaction(state: State, results: Sequence[Result]) -> Transaction:
    """Return the statements that record these results.

    A result that was sent twice is recorded once; the second one belongs to `rest`, where the
    statement finds no row for it.
    """
    claims: dict[tuple[int, int], dict[int, Result]] = {}
    rest: dict[tuple[int, int], list[Result]] = {}
    for result in results:
        known = claims.setdefault((result.session, result.claim), {})
        if result.task in known:
            rest.setdefault((result.session, result.claim), []).append(result)
        else:
            known[result.task] = result
    large: list[tuple[Result, ...]] = []
    small: list[tuple[Result, ...]] = []
    for key, reported in claims.items():
        whole = _in_order(state, key, reported)
        if whole is None:
            rest[key] = [*reported.values(), *rest.get(key, [])]
        else:
            (large if len(whole) >= LARGE else small).append(whole)
    return Transaction(tuple(large), tuple(small), tuple(map(tuple, rest.values())))


def _in_order(state: State, key: tuple[int, int], reported: dict[int, Result]) -> tuple[Result, ...] | None:
    """Return the results in the order of their claim, if they are all that is left of it, and plain.

    The statements for whole claims compare the order with the row's, and reject another one.
    """
    session = state.sessions.get(key[0])
    left = session.claims.get(key[1]) if session is not None else None
    if left is None or left.keys() != reported.keys() or not all(result.plain for result in reported.values()):
        return None
    return tuple(reported[task] for task in left)
