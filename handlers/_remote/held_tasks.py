"""The tasks that a remote worker holds, and their results until they are confirmed. No I/O.

The gateway records a claim cheapest if all its results arrive in one batch. So a result waits
until its claim has no open task, at most 20 ms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote.events import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._remote.messages import Result

LONGEST_WAIT: Final = 0.02
"""Seconds that a result waits for the rest of its claim."""
BATCH_RESULTS: Final = 500
BATCH_BYTES: Final = 2 << 20
"""Bytes of results at which a batch ends. The gateway accepts messages of 8 MiB."""


@dataclass(slots=True)
class _Claim:
    order: dict[int, None] = field(default_factory=dict)
    """Its tasks, in the order of the TaskBatch."""
    open: set[int] = field(default_factory=set)
    waiting: list[Ref] = field(default_factory=list)
    """Results that wait for the rest of the claim."""


class HeldTasks:
    """Tasks by claim. A task is open until it is reported, then it has a result."""

    def __init__(self) -> None:
        self._claims: dict[int, _Claim] = {}
        """Claims with open tasks."""
        self._results: dict[Ref, Result] = {}
        self._due: deque[Ref] = deque()
        """Results to send. Those that were confirmed or lost meanwhile are skipped."""
        self._partial: dict[int, float] = {}
        """Claims with waiting results, and since when. The oldest is the first."""
        self._open = 0

    @property
    def count(self) -> int:
        """Number of tasks that are held."""
        return self._open + len(self._results)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self.count

    def held(self) -> list[Ref]:
        """Return all tasks that are held: the open ones, and those whose results are not confirmed."""
        return self.open_tasks() + list(self._results)

    def open_tasks(self) -> list[Ref]:
        """Return the tasks that have no result yet."""
        return [Ref(task, claim) for claim, of in self._claims.items() for task in of.order if task in of.open]

    def is_open(self, ref: Ref) -> bool:
        """Return whether a task has no result yet."""
        claim = self._claims.get(ref.claim)
        return claim is not None and ref.task in claim.open

    def add(self, ref: Ref) -> None:
        """Add an open task."""
        if self.is_open(ref):
            return
        claim = self._claims.setdefault(ref.claim, _Claim())
        claim.order.setdefault(ref.task)
        claim.open.add(ref.task)
        self._open += 1

    def report(self, result: Result, now: float) -> bool:
        """Store the result of an open task. Returns False if the task is not open."""
        ref = Ref(result.task_id, result.claim)
        if not self.is_open(ref):
            return False
        claim = self._claims[ref.claim]
        self._results[ref] = result
        claim.waiting.append(ref)
        self._partial.setdefault(ref.claim, now)
        self._close(ref)
        return True

    def release(self, claim: int, behind: int) -> bool:
        """Forget the open tasks of a claim after a task, or all. Returns whether there were any."""
        found = self._claims.get(claim)
        if found is None or (behind and behind not in found.order):
            return False
        rest = list(found.order)
        if behind:
            rest = rest[rest.index(behind) + 1 :]
        tasks = [task for task in rest if task in found.open]
        for task in tasks:
            self._close(Ref(task, claim))
        if claim in self._claims:
            self._flush(claim)
        return bool(tasks)

    def lose(self, ref: Ref) -> bool:
        """Forget a task. Returns whether it was held: open, or with a result that is not confirmed."""
        if not self.is_open(ref):
            return self._results.pop(ref, None) is not None
        self._close(ref)
        return True

    def _close(self, ref: Ref) -> None:
        claim = self._claims[ref.claim]
        claim.open.remove(ref.task)
        self._open -= 1
        if not claim.open:
            self._flush(ref.claim)
            del self._claims[ref.claim]

    def _flush(self, claim: int) -> None:
        if self._partial.pop(claim, None) is not None:
            self._due.extend(self._claims[claim].waiting)
            self._claims[claim].waiting.clear()

    @property
    def has_due(self) -> bool:
        """Whether a result need not wait any longer."""
        return bool(self._due)

    def due_at(self) -> float:
        """Return when the oldest waiting result has waited long enough."""
        return next(iter(self._partial.values()), float("inf")) + LONGEST_WAIT

    def next_results(self, now: float) -> list[Ref]:
        """Return the results of the next batch. Empty: none is due."""
        while self.due_at() <= now:
            self._flush(next(iter(self._partial)))
        refs: list[Ref] = []
        size = 0
        while self._due and len(refs) < BATCH_RESULTS:
            ref = self._due[0]
            result = self._results.get(ref)
            if result is not None:
                size += result.ByteSize()
                if refs and size > BATCH_BYTES:
                    break
                refs.append(ref)
            self._due.popleft()
        return refs

    def result(self, ref: Ref) -> Result:
        """Return a result that is not confirmed."""
        return self._results[ref]

    def send_again(self, refs: Iterable[Ref]) -> None:
        """Send results again, before the others."""
        self._due = deque([*refs, *self._due])

    def confirm(self, ref: Ref) -> Result | None:
        """Forget a result, and return it. None: the task was lost before."""
        return self._results.pop(ref, None)
