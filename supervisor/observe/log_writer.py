"""Logs the messages that the slot table has collected, and counts the log lines that were dropped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.supervisor.observe.log_stream import LogStream
    from jobherd.supervisor.policy.slot_table import SlotTable

log = logging.getLogger("jobherd.supervisor")


class LogWriter:
    """Writes the messages of the slot table to the log once a turn."""

    def __init__(self, slot_table: SlotTable, log_stream: LogStream) -> None:
        self._slot_table = slot_table
        self._log_stream = log_stream
        self._reported = 0
        """Number of dropped log lines that were already reported."""

    def wake_at(self, _now: float) -> float:
        """Return infinity: messages come with an event, and the loop turns once a second."""
        return float("inf")

    def step(self, _now: float) -> None:
        """Write what has come since the last step, as far as the reader of the log takes it."""
        slot_table, stream = self._slot_table, self._log_stream
        stream.flush()
        if stream.dropped > self._reported and not stream.waits:
            dropped = stream.dropped - self._reported
            log.warning("%d log lines were dropped because standard error was not read", dropped)
            self._reported = stream.dropped
        notes, warnings, slot_table.notes, slot_table.warnings = slot_table.notes, slot_table.warnings, [], []
        for note in notes:
            log.info("%s", note)
        for warning in warnings:
            log.warning("%s", warning)
