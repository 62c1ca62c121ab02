"""Wakes one worker every `poll` seconds, in case a notification was lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.supervisor.settings.live import LiveSettings


class Poll:
    """The fallback for lost notifications. It costs the same for one worker and for 64."""

    def __init__(self, fleet: Fleet, settings: LiveSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._at = 0.0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._at

    def step(self, now: float) -> None:
        """Request one wake-up if that is due."""
        if now >= self._at:
            self._at = now + self._settings.now.poll * random.uniform(0.9, 1.1)
            self._fleet.request_wakeups()
