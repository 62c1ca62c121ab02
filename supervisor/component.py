"""The interface of a part of the supervisor: `step(now)`, and `wake_at(now)`, when the loop must call it next."""

from __future__ import annotations

from typing import Protocol


class Component(Protocol):
    """A part of the supervisor that acts in the turns of the loop. It must not block."""

    def step(self, now: float) -> None:
        """Do what is due. Called in every turn, so it must return at once if nothing is."""

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest; infinity if no time is known."""


class QueueEvents(Component, Protocol):
    """The component that takes what comes from the queue."""

    @property
    def only_work(self) -> bool:
        """Whether everything in the last step was about work."""
