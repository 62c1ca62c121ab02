"""Logs at the start what a new user needs: kinds, workers, queues, how to stop.

The web process logs the address of the dashboard, because only that process has the result of its bind.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.settings.readers import show_span
from jobherd.workers.ipc.counters import OTHER_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.settings.definitions import Settings
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.status_board import StatusBoard

log = logging.getLogger("jobherd.supervisor")

NAMED: Final = 8
"""Maximum number of kinds that are named."""


class StartupLog:
    """Logs the lines once, when the first worker is READY."""

    def __init__(self, slot_table: SlotTable, boards: Sequence[StatusBoard], settings: LiveSettings) -> None:
        self._slot_table = slot_table
        self._boards = boards
        self._settings = settings
        self._logged = False

    def wake_at(self, _now: float) -> float:
        """Return infinity: a worker's message wakes the loop."""
        return float("inf")

    def step(self, _now: float) -> None:
        """Log the lines if a worker has become READY for the first time."""
        if self._slot_table.ever_ready and not self._logged:
            self._logged = True
            for line in startup_lines(self._settings.now, self._boards):
                log.info("%s", line)


def startup_lines(settings: Settings, boards: Sequence[StatusBoard]) -> list[str]:
    """Return the lines to log at the start.

    Args:
        settings: the settings.
        boards: the status boards of the slots; the first one with any kinds is used.
    """
    found = (sorted(kind.name for kind in board.tally.kind_counts() if kind.name != OTHER_KINDS) for board in boards)
    kinds = next((names for names in found if names), [])
    more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
    queues = ", ".join(settings.queues) or "all"
    return [
        f"serves {len(kinds)} {'kind' if len(kinds) == 1 else 'kinds'}: {', '.join(kinds[:NAMED])}{more}",
        f"{settings.workers} {'worker' if settings.workers == 1 else 'workers'}, queues: {queues}",
        (
            f"stop with Ctrl-C: running jobs may finish within {show_span(settings.drain_timeout)}; "
            "a second Ctrl-C returns them to their queues"
        ),
    ]
