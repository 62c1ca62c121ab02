"""Logs the messages that the fleet has recorded, and reports lines that the log has dropped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.supervisor.observe.log_stream import LogStream
    from jobherd.supervisor.policy.fleet import Fleet

log = logging.getLogger("jobherd.supervisor")


class FleetLog:
    """Writes the fleet's messages once a turn."""

    def __init__(self, fleet: Fleet, log_stream: LogStream) -> None:
        self._fleet = fleet
        self._log_stream = log_stream
        self._reported = 0
        """Number of dropped log lines that were already reported."""

    def wake_at(self, _now: float) -> float:
        """Return infinity: messages come with an event, and the loop turns once a second."""
        return float("inf")

    def step(self, _now: float) -> None:
        """Write what has come since the last step, as far as the reader of the log takes it."""
        fleet, stream = self._fleet, self._log_stream
        stream.flush()
        if stream.dropped > self._reported and not stream.waits:
            dropped = stream.dropped - self._reported
            log.warning("%d log lines were dropped because standard error was not read", dropped)
            self._reported = stream.dropped
        notes, warnings, fleet.notes, fleet.warnings = fleet.notes, fleet.warnings, [], []
        for note in notes:
            log.info("%s", note)
        for warning in warnings:
            log.warning("%s", warning)
