"""Formats output: tables that fit the terminal, colors on terminals only, JSON, durations.

Control characters in text from jobs are made visible: an error text must not move the cursor or
rewrite the screen of the user. This module does not depend on what a job is.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import unicodedata
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

import orjson

from jobherd.handlers._values.encryption import cover
from jobherd.handlers._values.json_output import dumpable
from jobherd.workers.inspect.phrases import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

NARROWEST: Final = 80
COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}
STATE_COLOURS: Final = {
    "completed": "green", "failed": "red", "running": "cyan", "retrying": "yellow", "cancelled": "dim",
    "expired": "dim", "ready": "", "scheduled": "blue", "blocked": "blue",
}  # fmt: skip
_ORDER: Final = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
"""Characters that change the direction of text or end a line, but are not control characters."""
_HIDDEN: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{_ORDER}\ud800-\udfff]")
_HIDDEN_BUT_LINES: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_ORDER}\ud800-\udfff]")
_UNSAFE_IN_JSON: Final = re.compile(rf"[\x7f-\x9f{_ORDER}]")
"""JSON strings contain no other control characters, and these occur only in strings."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    heading: str
    right: bool = False
    least: int = 0
    """Characters to which the column may shrink if the table is too wide; 0: it never shrinks."""


def is_colourful(stream: TextIO) -> bool:
    """Whether to use colors: on a terminal, without NO_COLOR, and if TERM is not dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return the text in a color if standard output shows colors."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour and is_colourful(sys.stdout) else text


def width() -> int:
    """Return the width to use: that of the terminal, but at least 80 columns."""
    return max(NARROWEST, shutil.get_terminal_size((NARROWEST, 24)).columns)


def line_limit() -> float:
    """Return the longest line that is not cut: that of the terminal, or any in a pipe or file without COLUMNS."""
    return width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else math.inf


def plain(text: object) -> str:
    """Return a text on one line, with its control characters made visible."""
    return _HIDDEN.sub(_visible, cover(str(text)))


def plain_lines(text: object) -> str:
    """Return a text with its line breaks kept and other control characters made visible."""
    return _HIDDEN_BUT_LINES.sub(_visible, cover(str(text)))


def cells(text: str) -> int:
    """Return how many terminal columns a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: float) -> str:
    """Return the text in at most `most` columns, with an ellipsis at its end if it was cut."""
    if cells(text) <= most:
        return text
    mark = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "~"
    kept, used = "", 0
    for c in text:
        used += cells(c)
        if used > most - 1:
            break
        kept += c
    return kept + mark


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, colours: Sequence[Mapping[int, str]] = ()
) -> None:
    """Print a table that fits the terminal. In a pipe or a file nothing is cut.

    Args:
        columns: headings and widths.
        rows: the values.
        colours: for each row, the color of some of its columns, by column number.
    """
    texts = [["-" if value is None else plain(value) for value in row] for row in rows]
    wide = [max([len(column.heading), *(cells(row[place]) for row in texts)]) for place, column in enumerate(columns)]
    gap, limit = 2, line_limit()
    while sum(wide) + gap * (len(wide) - 1) > limit:
        able = [place for place, column in enumerate(columns) if column.least and wide[place] > column.least]
        if not able:
            break
        wide[max(able, key=lambda place: wide[place])] -= 1
    heading = (" " * gap).join(
        _pad(column.heading, wide[place], right=column.right) for place, column in enumerate(columns)
    )
    print(paint(heading.rstrip(), "dim"))
    for number, row in enumerate(texts):
        painted = []
        for place, text in enumerate(row):
            last = place == len(row) - 1 and not columns[place].right
            padded = (
                cut(text, wide[place])
                if last
                else _pad(cut(text, wide[place]), wide[place], right=columns[place].right)
            )
            painted.append(paint(padded, colours[number].get(place, "")) if number < len(colours) else padded)
        print((" " * gap).join(painted).rstrip())


_collected: ContextVar[list[object] | None] = ContextVar("jobherd_collected_json", default=None)


@contextmanager
def collected_json() -> Iterator[list[object]]:
    """Yield a list that gets the documents which the block would print."""
    documents: list[object] = []
    token = _collected.set(documents)
    try:
        yield documents
    finally:
        _collected.reset(token)


def print_json(document: object) -> None:
    """Print a document. Timestamps are in ISO 8601 and UTC; JSON from the database is unchanged.

    Characters that move the cursor or change the direction of text are escaped. This also applies
    to a pipe, which may lead to a terminal; a JSON parser gets the same text.
    """
    if (documents := _collected.get()) is not None:
        documents.append(document)
        return
    text = (
        orjson.dumps(dumpable(document), option=orjson.OPT_INDENT_2)
        .decode(errors="backslashreplace")
        .replace("\r", " ")
    )
    sys.stdout.write(_UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def show_span(seconds: float | None) -> str:
    """Return a duration without its sign, or "-" if it is not known.

    >>> show_span(5400), show_span(-3), show_span(None)
    ('1 h 30 min', '3.0 s', '-')
    """
    return "-" if seconds is None else duration(abs(seconds))


def show_moment(moment: datetime | None) -> str:
    """Return a timestamp in local time, to the second."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def near(path: str) -> str:
    """Return a path relative to the working directory if it is below, as people write it."""
    try:
        return path.removeprefix(os.getcwd() + os.sep)
    except FileNotFoundError:  # the working directory was removed
        return path


def complain(text: str) -> None:
    """Print a message to standard error that is not the result, but concerns the user."""
    print(f"jobherd: {plain_lines(text)}", file=sys.stderr)


def _pad(text: str, columns: int, *, right: bool) -> str:
    filler = " " * max(0, columns - cells(text))
    return filler + text if right else text + filler


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r", 27: "\\e"}.get(code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
