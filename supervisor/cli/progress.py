"""Shows the progress of a long command on the last line of a terminal.

Standard output is reserved for the result. Without a terminal, nothing is shown.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from jobherd.supervisor.cli.console import NARROWEST, show_span

PAUSE: Final = 0.1
"""Seconds between two updates of the line."""
BAR: Final = 24
"""Columns of the bar."""


class Progress:
    """The progress line: a bar if the length is known, else a count. A single chunk shows none."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._start = time.monotonic()
        self._next = 0.0
        self._chunks = 0
        self._last = ""
        self._shown = False
        self._wanted = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, done: int, read: int) -> None:
        """Update the line: `done` jobs are enqueued, from `read` bytes."""
        self._chunks += 1
        if not self._wanted:
            return
        now = time.monotonic()
        seconds = max(now - self._start, 0.001)
        self._last = f"{done:,} jobs, {done / seconds:,.0f} a second"
        if self._length:
            part = min(1.0, read / self._length)
            full = int(part * BAR)
            left = f", {show_span(seconds / part * (1 - part))} left" if 0 < part < 1 else ""
            self._last = f"[{'#' * full}{'.' * (BAR - full)}] {int(part * 100):3d}%  {self._last}{left}"
        if now >= self._next and (self._chunks > 1 or (self._length and read < self._length)):
            self._next, self._shown = now + PAUSE, True
            self._draw()

    def hide(self) -> None:
        """Erase the line: IDs are about to be printed, perhaps on the same terminal."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Keep the last state on the terminal, if any was shown."""
        if self._shown:
            self._draw()
            print(file=sys.stderr)

    def _draw(self) -> None:
        print(f"\r{self._last[: _columns() - 1]}\x1b[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    """Return the terminal's width, 80 if it is unknown: a line that wraps could not be erased."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or NARROWEST
    except (OSError, ValueError):
        return NARROWEST
