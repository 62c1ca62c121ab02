"""Calculates charts: positions of bars and lines, and the labels of the axes.

Templates draw them (`_charts.html`) without a script. A chart shows nothing that is not also in the
table of its page of figures. Everything is in a frame of `WIDE` by `HIGH` that the browser stretches, so nothing
with a fixed shape (text, dots) is drawn in it. Cost: a browser needs longer for each element, so bars of one tone
are one path, and the script moves one area to the point that is read. Pure: no request and no database.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jobherd.workers.dashboard.render import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

WIDE: Final = 1000.0
HIGH: Final = 100.0
_GAP: Final = 0.14
"""Share of a bar's width that stays free."""
_NICE: Final = (1, 2, 4, 6, 10)
"""The first digits of the end of an axis: half of each is also easy to read."""
_SPANS: Final = (60, 120, 240, 600, 1200, 2400, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800)
"""Ends of a time axis above a minute, in seconds: each and its half are easy to read."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time window of the charts.

    name: in addresses.
    seconds: its length.
    point: the seconds of a bar.
    per: the word for its unit.
    """

    name: str
    word: str
    seconds: int
    point: int
    per: str


WINDOWS: Final = {
    window.name: window
    for window in (
        Window("hour", "Hour", 3600, 60, "minute"),
        Window("day", "Day", 86400, 900, "15 min"),
        Window("week", "Week", 604800, 3600, "hour"),
    )
}


def window_of(name: str | None) -> Window:
    """Return the window of that name, or the hour.

    >>> window_of("week").point, window_of("no such").name
    (3600, 'hour')
    """
    return WINDOWS.get(name or "", WINDOWS["hour"])


@dataclass(frozen=True, slots=True)
class Series:
    """One series of values.

    column: of the rows.
    name: in the legend.
    tone: a class of the style sheet: accent, bad, warn, soft.
    of_jobs: it counts jobs, which have ended in the state `name`, and not attempts.
    """

    column: str
    name: str
    tone: str
    of_jobs: bool = True


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of a tone."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    is_partial: bool = False
    """Whether its time is not over yet."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The data that a template draws.

    marks: labels of the vertical axis, from the top. ticks: times below the axis, evenly spaced.
    bars, lines (a tone and a path in SVG): one of the two.
    said: the values of each point. leads: for each point "1" if it counts jobs that can be listed, else "0".
    since: when the first point begins. point: the seconds of each.
    empty: there is nothing to show; nothing: the sentence for that.
    query: the filter of its jobs, without a time; "" if it counts none.
    """

    title: str
    unit: str
    marks: tuple[str, ...]
    ticks: tuple[datetime, ...]
    legend: tuple[Series, ...]
    bars: tuple[Bar, ...]
    lines: tuple[tuple[str, str], ...]
    said: tuple[str, ...]
    leads: str
    since: datetime | None
    point: int
    summary: str
    empty: bool
    nothing: str
    query: str = ""

    @property
    def paths(self) -> list[tuple[str, bool, str]]:
        """The bars as paths in SVG: a tone, whether its time is not over, and the path."""
        found: dict[tuple[str, bool], list[str]] = {}
        for bar in self.bars:
            drawn = f"M{bar.x:g} {bar.y:g}h{bar.width:g}v{bar.height:g}h-{bar.width:g}z"
            found.setdefault((bar.tone, bar.is_partial), []).append(drawn)
        return [(tone, is_partial, "".join(drawn)) for (tone, is_partial), drawn in found.items()]


def bars(title: str, rows: Sequence[Mapping[str, Any]], series: Sequence[Series], window: Window) -> Chart:
    """Return a chart of counts with stacked series.

    rows: one a point, in order, with `at` and a column for each series.
    """
    values = [[_number(row[one.column]) for one in series] for row in rows]
    top = nice(max((sum(each) for each in values), default=0.0))
    wide = WIDE / max(1, len(rows))
    drawn = []
    for place, each in enumerate(values):
        below = 0.0
        for one, value in zip(series, each, strict=True):
            if value:
                height = max(0.8, HIGH * value / top)  # one among thousands stays visible
                drawn.append(_bar(place, below, height, wide, one.tone, is_partial=place + 1 == len(rows)))
                below += height
    states = [one.name for one in series if one.of_jobs]
    whole = sum(map(sum, values))
    most = max((sum(each) for each in values), default=0)
    return Chart(
        title=title,
        unit=f"{'jobs ' if len(states) == len(series) else ''}per {window.per}",
        marks=(count(_whole(top)), count(_whole(top / 2)), "0"),
        ticks=_ticks(rows),
        legend=tuple(series),
        bars=tuple(drawn),
        lines=(),
        said=_said(rows, series, count),
        leads="".join(
            str(int(any(value for one, value in zip(series, each, strict=True) if one.of_jobs))) for each in values
        ),
        since=rows[0]["at"] if rows else None,
        point=window.point,
        summary=f"{title}: {_sums(values, series)} in all, at most {count(_whole(most))} per {window.per}.",
        empty=not whole,
        nothing=f"No job {' or '.join(states)} in this period"
        + ("." if len(states) == len(series) else ", and no attempt failed."),
        query=urlencode([("state", state) for state in states]),
    )


def lines(title: str, rows: Sequence[Mapping[str, Any]], series: Sequence[Series], window: Window) -> Chart:
    """Return a chart of durations in seconds, a line for each series.

    A line has gaps where no value is known. rows: as for `bars`.
    """
    known = [_number(row[one.column]) for row in rows for one in series if row[one.column] is not None]
    top = nice_seconds(max(known, default=0.0))
    wide = WIDE / max(1, len(rows))
    drawn = [(one.tone, path) for one in series for path in _paths([row[one.column] for row in rows], top, wide)]
    worst = duration(max(known)) if known else ""
    return Chart(
        title=title,
        unit="",
        marks=(duration(top), duration(top / 2), "0"),
        ticks=_ticks(rows),
        legend=tuple(series),
        bars=(),
        lines=tuple(drawn),
        said=_said(rows, series, duration),
        leads="0" * len(rows),
        since=rows[0]["at"] if rows else None,
        point=window.point,
        summary=f"{title}: {series[-1].name} at most {worst}." if known else f"{title}: nothing ran.",
        empty=not known,
        nothing="No job ran in this period.",
    )


def nice(most: float) -> float:
    """Return the end of an axis for values up to `most`.

    >>> nice(0), nice(3), nice(41), nice(1234)
    (4.0, 4.0, 60.0, 2000.0)
    """
    if most <= 4:
        return 4.0 if most > 2 or most <= 0 else 2.0
    scale = 10 ** math.floor(math.log10(most))
    return float(next(digit * scale for digit in _NICE if digit * scale >= most))


def nice_seconds(most: float) -> float:
    """Return the end of a time axis, in seconds.

    >>> nice_seconds(0.0031), nice_seconds(9), nice_seconds(61)
    (0.004, 10.0, 120.0)
    """
    if most <= 0:
        return 0.001
    if most > 60:
        return float(next((span for span in _SPANS if span >= most), math.ceil(most / 86400 / 2) * 2 * 86400))
    scale = 10.0 ** math.floor(math.log10(most))
    found = next(digit * scale for digit in _NICE if digit * scale >= most * 0.999999)
    return 60.0 if found > 60 else round(found, 12)


def _bar(place: int, below: float, height: float, wide: float, tone: str, *, is_partial: bool) -> Bar:
    return Bar(
        round((place + _GAP / 2) * wide, 2),
        round(max(0.0, HIGH - below - height), 2),
        round(wide * (1 - _GAP), 2),
        round(height, 2),
        tone,
        is_partial,
    )


def _paths(values: Sequence[object], top: float, wide: float) -> list[str]:
    """Return a path for each run of known values; a single value becomes a short stroke."""
    found: list[str] = []
    run: list[tuple[float, float]] = []
    for place, value in enumerate([*values, None]):
        if value is not None:
            run.append(((place + 0.5) * wide, HIGH - min(HIGH, HIGH * _number(value) / top)))
        elif run:
            if len(run) == 1:
                [(x, y)] = run
                run = [(x - wide / 3, y), (x + wide / 3, y)]
            found.append("M" + "L".join(f"{x:.1f} {y:.2f}" for x, y in run))
            run = []
    return found


def _sums(values: Sequence[Sequence[float]], series: Sequence[Series]) -> str:
    """Return the sums of jobs and of attempts in words."""
    jobs = sum(value for each in values for one, value in zip(series, each, strict=True) if one.of_jobs)
    told = f"{count(_whole(jobs))} jobs"
    if all(one.of_jobs for one in series):
        return told
    return f"{told} and {count(_whole(sum(map(sum, values)) - jobs))} failed attempts that were followed by another"


def _ticks(rows: Sequence[Mapping[str, Any]]) -> tuple[datetime, ...]:
    """Return the times of five evenly spaced points, the first and the last among them."""
    return tuple(rows[round(part * (len(rows) - 1) / 4)]["at"] for part in range(5)) if rows else ()


def _said(rows: Sequence[Mapping[str, Any]], series: Sequence[Series], show: Callable[[float], str]) -> tuple[str, ...]:
    """Return the values of each point in words."""
    told = [
        [None if row[one.column] is None else f"{one.name} {show(row[one.column])}" for row in rows] for one in series
    ]
    return tuple(", ".join(filter(None, each)) or "nothing ran" for each in zip(*told, strict=True))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value
