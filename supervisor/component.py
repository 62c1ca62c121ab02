"""Defines what the loop calls on each part of the supervisor: `step(now)` and `wake_at(now)`."""

from __future__ import annotations

from typing import Protocol


class Component(Protocol):
    """A part of the supervisor that acts in the turns of the loop. It must not block."""

    def step(self, now: float) -> None:
        """Do what is due. The loop calls it in every turn, so it must return at once if nothing is due."""

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest; infinity if no time is known."""


class QueueEvents(Component, Protocol):
    """The component that processes events of the database or the gateway."""

    @property
    def only_work(self) -> bool:
        """Whether all events of the last step were about ready jobs."""
