"""Shows the job that the user of `top` has opened: the lines of `jobherd job`, folded and scrolled.

`Opened` comes from `watch.py`. `draw` returns the part of it that fits. A long payload or output is
cut: the screen is drawn twice a second, and `jobherd job` shows the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from jobherd.supervisor.cli.top.view import View

LONGEST: Final = 4000
"""Characters of a line that are shown."""
MOST: Final = 5000
"""Lines that are shown."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A job at the time of an update. lines: what `jobherd job` prints, perhaps with colors."""

    id: int
    lines: tuple[str, ...]


def draw(opened: Opened | None, view: View, width: int, height: int) -> list[Text]:
    """Return at most `height` lines, none wider than `width`. Moves the view back to the last full page."""
    if opened is None or opened.id != view.opened:
        return [Text(f"job {view.opened}: reading it", style="dim")]
    lines = _folded(opened, width)
    view.scroll = max(0, min(view.scroll, len(lines) - height))
    return [line.copy() for line in lines[view.scroll : view.scroll + height]]


@lru_cache(maxsize=1)
def _folded(opened: Opened, width: int) -> list[Text]:
    """Return the lines broken at the width. Cached: most frames show the same job unchanged."""
    found: list[Text] = []
    for number, line in enumerate(opened.lines):
        if number >= MOST:
            return [*found, Text(f"… `jobherd job {opened.id}` shows the rest", style="dim")]
        text = Text.from_ansi(line)
        if len(text) > LONGEST:
            text = text[:LONGEST].append("…")
        found += _broken(text, width)
    return found


def _broken(text: Text, width: int) -> list[Text]:
    if text.cell_len <= width:
        return [text]
    offsets, used = [], 0
    for place, character in enumerate(text.plain):
        wide = cell_len(character)
        if used + wide > width:
            offsets.append(place)
            used = 0
        used += wide
    return list(text.divide(offsets))
