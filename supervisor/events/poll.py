"""Wakes one worker every `poll` seconds, in case a notification was lost, and when a rate limit opens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.settings.live import LiveSettings


class Poll:
    """The fallback for lost notifications. It costs the same for one worker and for 64."""

    def __init__(self, slot_table: SlotTable, settings: LiveSettings) -> None:
        self._slot_table = slot_table
        self._settings = settings
        self._at = 0.0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return min(self._at, self._slot_table.opens_at)

    def step(self, now: float) -> None:
        """Request one wake-up if that is due. A worker that takes the last token reports the next one."""
        if now >= self._slot_table.opens_at:
            self._slot_table.opens_at = float("inf")
            self._slot_table.request_wakeups()
        if now >= self._at:
            self._at = now + self._settings.now.poll * random.uniform(0.9, 1.1)
            self._slot_table.request_wakeups()
