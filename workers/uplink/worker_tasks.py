"""Which worker has which task, and who waits for which results. Pure: `now` is monotonic and an argument.

A task is open until its result is reported. Then the result is awaited until the gateway has
recorded it, or the task turns out to be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jobherd.handlers._remote.events import Ref

NEVER: Final = float("inf")
SHARE: Final = 1 / 3
"""Part of a lease after which it is extended."""


@dataclass(slots=True)
class _Open:
    child: int
    lease: float
    extend_at: float
    until: float


@dataclass(slots=True)
class _Wait:
    """A settlement that is answered when all its results are."""

    done: Callable[[set[Ref]], None]
    left: set[Ref] = field(default_factory=set)
    lost: set[Ref] = field(default_factory=set)


class WorkerTasks:
    """The tasks of all workers of this supervisor. A worker is named by its incarnation."""

    def __init__(self) -> None:
        self._open: dict[Ref, _Open] = {}
        self._waits: dict[Ref, list[_Wait]] = {}
        """By task whose result is not confirmed."""
        self._extend_at = NEVER

    def add(self, child: int, refs: Iterable[Ref], *, lease: float, now: float, until: float = NEVER) -> None:
        """Add tasks that a worker gets. until: no extension after that."""
        at = now + lease * SHARE
        for ref in refs:
            self._open[ref] = _Open(child, lease, at, until)
            self._extend_at = min(self._extend_at, at)

    def open_of(self, child: int, claim: int = 0) -> list[Ref]:
        """Return the open tasks of a worker, or of one claim, in the order of their arrival."""
        return [ref for ref, task in self._open.items() if task.child == child and claim in {0, ref.claim}]

    @property
    def is_empty(self) -> bool:
        """Whether no task is open, and no result is awaited."""
        return not self._open and not self._waits

    @property
    def has_open(self) -> bool:
        """Whether a task is open."""
        return bool(self._open)

    def open(self) -> list[Ref]:
        """Return all open tasks."""
        return list(self._open)

    def child_of(self, ref: Ref) -> int:
        """Return the worker that has an open task; 0: none."""
        task = self._open.get(ref)
        return 0 if task is None else task.child

    def report(self, refs: Sequence[Ref], done: Callable[[set[Ref]], None]) -> list[Ref]:
        """Take reported results, and return those that must be sent, in their order.

        done: called once, when each result is recorded or lost, with those that are lost. A result
            that is reported twice is sent once.
        """
        wait, new = _Wait(done), []
        for ref in refs:
            if self._open.pop(ref, None) is not None:
                new.append(ref)
            elif ref not in self._waits:
                wait.lost.add(ref)
                continue
            wait.left.add(ref)
            self._waits.setdefault(ref, []).append(wait)
        if not wait.left:
            done(wait.lost)
        return new

    def end(self, ref: Ref, *, lost: bool) -> int:
        """A task has ended: its result is recorded, or it is lost. Return the worker if it was open, else 0."""
        task = self._open.pop(ref, None)
        for wait in self._waits.pop(ref, ()):
            wait.left.discard(ref)
            if lost:
                wait.lost.add(ref)
            if not wait.left:
                wait.done(wait.lost)
        return 0 if task is None else task.child

    def wake_at(self) -> float:
        """Return when `due` has something to extend."""
        return self._extend_at

    def due(self, now: float) -> list[tuple[Ref, float]]:
        """Return the tasks to extend now, and for how many seconds."""
        if now < self._extend_at:
            return []
        found = []
        self._extend_at = NEVER
        for ref, task in self._open.items():
            if now >= task.until:
                continue
            if now >= task.extend_at:
                task.extend_at = now + task.lease * SHARE
                found.append((ref, task.lease))
            self._extend_at = min(self._extend_at, task.extend_at)
        return found
