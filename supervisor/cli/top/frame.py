"""Draws one frame of `top` into exactly the lines and columns of the terminal. It changes nothing.

Each panel gets a row or two before any gets more, the chosen panel first. A panel's heading counts
the rows that do not fit. A column shrinks, and on a narrow terminal is left out, before a line
would wrap: a wrapped line would push other lines off the screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from jobherd.supervisor.cli.console import plain, show_span
from jobherd.supervisor.cli.top import opened
from jobherd.supervisor.cli.top.layout import GAP, fit, share
from jobherd.supervisor.cli.top.panel import Bar
from jobherd.supervisor.cli.top.panels import PANELS, count
from jobherd.supervisor.cli.top.view import HELP, KEYS, KEYS_OF_JOB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from jobherd.supervisor.cli.top.panel import Cell, Panel
    from jobherd.supervisor.cli.top.view import View
    from jobherd.supervisor.cli.top.watch import Look

NARROWEST: Final = 40
LOWEST: Final = 10
"""Least lines of the terminal; a smaller frame is not readable."""
ROOMY: Final = 32
"""From this many lines, panels are separated by an empty line even if that costs rows."""
BAR: Final = 12
"""Columns of a bar next to a note."""
_ASCII: Final = str.maketrans("…━─█", "~#._")
"""For a terminal without Unicode. Each character takes one column, as before."""


@dataclass(frozen=True, slots=True)
class Status:
    """The facts that are not in the database: its name, the current time, whether it answers.

    Args:
        where: the database, in words.
        clock: the current time of day.
        away_since: the time of day since which it has not answered.
        away_for: seconds since then; None while it answers.
        why: the message of the driver.
    """

    where: str
    clock: str
    away_since: str = ""
    away_for: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame for rich. It gets the terminal's size when drawn, so a resize needs only a redraw."""

    look: Look
    view: View
    status: Status

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        lines = draw(
            self.look,
            self.view,
            self.status,
            width=options.max_width,
            height=options.height or options.size.height,
            ascii_only=options.ascii_only,
        )
        yield from lines


def draw(look: Look, view: View, status: Status, *, width: int, height: int, ascii_only: bool = False) -> list[Text]:
    """Return exactly `height` lines, none wider than `width`."""
    if width < NARROWEST or height < LOWEST:
        lines = [Text(f"too small: {width} by {height}")]
    else:
        head = [_title(status, width), _summary(look, status), *_attention(look, status)]
        lines = [*head, *_body(look, view, width, height - len(head) - 1, dim=status.away_for is not None)]
    lines = lines[: height - 1]
    lines += [Text("") for _ in range(height - 1 - len(lines))]
    lines.append(_foot(view))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        if ascii_only:
            line.plain = line.plain.translate(_ASCII)
    return lines


# -- the parts


def _title(status: Status, width: int) -> Text:
    line = Text("jobherd top", style="bold")
    line.append(f"  {plain(status.where)}", style="dim")
    line.truncate(width - len(status.clock) - GAP, overflow="ellipsis", pad=True)
    line.append(" " * GAP + status.clock, style="dim")
    return line


def _total(queues: Sequence[Mapping[str, Any]], state: str) -> str:
    """Return how many jobs of all queues are in a state; a + says that a count stopped early."""
    more = "+" if any(queue[f"{state}_capped"] for queue in queues) else ""
    return f"{sum(queue[state] for queue in queues):,}{more}"


def _summary(look: Look, status: Status) -> Text:
    if status.away_for is not None:
        since = f"{status.away_since} ({show_span(status.away_for)})"
        text = f"the database is away since {since}, trying again: {plain(status.why)}"
        return Text(text, style="bold red")
    workers = [child for child in look.children if child["kind"] == "worker"]
    busy = sum(child["job"] is not None for child in workers)
    parts = [
        f"{_total(look.queues, 'ready')} ready",
        f"{_total(look.queues, 'scheduled')} scheduled"
        + (f" ({count(look.retrying)} retrying)" if look.retrying else ""),
        f"{count(sum(queue['running'] for queue in look.queues))} running",
        f"{busy} of {len(workers)} workers busy",
    ]
    if look.rate is not None:
        parts.append(f"{look.rate:,.0f} jobs/s" if look.rate >= 10 else f"{look.rate:.1f} jobs/s")
    if look.failed or look.retried:
        parts.append(f"failed in 1 h: {count(look.failed)} jobs, {count(look.retried)} attempts")
    line = Text("  ".join(parts))
    for gate in look.gates:
        if gate["paused"]:
            what = "everything" if gate["scope"] == "all" else plain(gate["name"])
            line.append(f"  {what} is paused", style="yellow")
    return line


def _attention(look: Look, status: Status) -> list[Text]:
    """Return the line of what needs attention, if anything does."""
    if not look.attention or status.away_for is not None:
        return []
    parts = [Text(f"! {plain(item.text)}", "red" if item.is_severe else "yellow") for item in look.attention]
    return [Text("  ").join(parts)]


def _body(look: Look, view: View, width: int, height: int, *, dim: bool) -> list[Text]:
    if view.helps:
        return _help()
    if view.opened is not None:
        return opened.draw(look.opened, view, width, height)
    return _panels(look, view, width, height, dim=dim)


def _help() -> list[Text]:
    lines = [Text(""), Text("keys", style="bold")]
    for keys, does in HELP:
        line = Text(f"  {set_cell_size(keys, 26)}", style="cyan")
        line.append(does, style="default")
        lines.append(line)
    hints = (
        "Any key goes back.",
        "Bars show job.progress() of handlers; `jobherd why ID` explains a job.",
    )
    return [*lines, Text(""), *(Text(text, style="dim") for text in hints)]


def _panels(look: Look, view: View, width: int, height: int, *, dim: bool) -> list[Text]:
    tables = [view.rows(panel, look) for panel in PANELS]
    wants = [max(1, len(rows)) for rows in tables]
    apart = 1 if height >= ROOMY or sum(wants) + 2 * len(PANELS) <= height else 0
    space = height - len(PANELS) * (1 + apart)
    given = share(wants, space, first=view.panel)
    lines: list[Text] = []
    for place, panel in enumerate(PANELS):
        lines += [Text("")] * apart
        lines += _panel(
            panel, tables[place], view, width, given[place], chosen=place == view.panel and not view.still, dim=dim
        )
    return lines


def _panel(
    panel: Panel, rows: list[dict[str, object]], view: View, width: int, height: int, *, chosen: bool, dim: bool
) -> list[Text]:
    at = view.place(panel, rows)
    # The chosen row is visible, and in the middle if possible.
    top = max(0, min(at - height // 2, len(rows) - height))
    shown = rows[top : top + height]
    cells = [[column.cell(row) for column in panel.columns] for row in shown]
    title = panel.title if len(shown) == len(rows) else f"{panel.title} {len(shown)}/{len(rows)}"
    wide = [max((_wide(row[place]) for row in cells), default=0) for place in range(len(panel.columns))]
    wide[0] = max(wide[0], cell_len(title))
    kept = fit(panel.columns, wide, width)
    heading = [(title if place == 0 else panel.columns[place].title, "") for place in kept]
    lines = [_row(heading, kept, panel, style="reverse bold" if chosen else "bold", width=width)]
    if not rows and height:
        lines.append(Text("no row has these words" if view.wanted else panel.empty, style="dim"))
    for place, row in enumerate(cells):
        style = "dim" if dim else "on grey23" if chosen and top + place == at else ""
        line = _row([row[number] for number in kept], kept, panel, style=style, width=width)
        lines.append(line)
    return lines


def _row(cells: Sequence[Cell], kept: dict[int, int], panel: Panel, *, style: str, width: int) -> Text:
    line = Text(style=style)
    for cell, (place, wide) in zip(cells, kept.items(), strict=True):
        if line:
            line.append(" " * GAP)
        line.append_text(
            _bar(cell, wide) if isinstance(cell, Bar) else _cell(cell, wide, right=panel.columns[place].right)
        )
    line.pad_right(max(0, width - line.cell_len))
    return line


def _cell(cell: tuple[str, str], wide: int, *, right: bool) -> Text:
    text = Text(cell[0], style=cell[1])
    text.truncate(wide, overflow="ellipsis")
    missing = max(0, wide - text.cell_len)
    if right:
        text.pad_left(missing)
    else:
        text.pad_right(missing)
    return text


def _bar(bar: Bar, wide: int) -> Text:
    """Return a bar with its percentage and the note; without progress only the note."""
    text = Text()
    if bar.fraction is not None:
        part = min(1.0, max(0.0, bar.fraction))
        long = max(4, min(BAR, wide - 5))
        full = round(part * long)
        text.append("━" * full, style="green")
        text.append("─" * (long - full), style="dim")
        text.append(f" {int(part * 100):3d}%")
        if bar.note:
            text.append("  ")
    text.append(bar.note)
    text.truncate(wide, overflow="ellipsis", pad=True)
    return text


def _wide(cell: Cell) -> int:
    if isinstance(cell, Bar):
        return (BAR + 5 if cell.fraction is not None else 0) + (cell_len(cell.note) + GAP if cell.note else 0)
    return cell_len(cell[0])


def _foot(view: View) -> Text:
    if view.still:
        return Text("")
    if view.question is not None:
        line = Text(plain(view.question.text), style="bold yellow")
        return line.append(f" {view.typed}█", style="default") if view.question.typed else line
    if view.filters:
        return Text("filter: ", style="bold").append(f"{view.typed}█")
    if view.said:
        return Text(plain(view.said), style="bold red" if view.is_bad else "bold green")
    line = Text(KEYS if view.opened is None else KEYS_OF_JOB, style="dim")
    if view.wanted and view.opened is None:
        line = Text(f"filter: {view.wanted} (escape shows all)  ", style="yellow").append(KEYS, style="dim")
    return line
