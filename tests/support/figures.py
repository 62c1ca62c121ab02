"""The report of a measurement: percentiles, aims that are met or missed, invariants that hold or are broken.

Only a broken invariant makes a script fail. Aims are times, which depend on the load of the machine,
so a missed aim is only printed. If the environment variable named by FOLDER is set, the figures are
also written to that folder, for the table of `make bench` and for docs/project/performance*.md.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER: Final = "JOBHERD_TEST_FIGURES"
"""Environment variable with the folder for the figures. If it is not set, they are only printed."""
POINTS: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def at(values: Sequence[float], share: float) -> float:
    """Return the percentile of the values by nearest rank, for a share from 0 to 1; nan if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else float("nan")


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by order statistics: of ten values, the second and the ninth."""
    ordered, count = sorted(values), len(values)
    cut, below = 0, 1.0
    while cut < count // 2 and 2 * (below + math.comb(count, cut + 1)) / 2**count <= 0.05:
        cut += 1
        below += math.comb(count, cut)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2, ordered[cut], ordered[count - 1 - cut]


@dataclass(frozen=True)
class Figure:
    """A line of the table: the measurement, its floor and their ratio, each a median with its interval."""

    label: str
    unit: str
    count: int
    """Number of measurements, or of pairs if there is a floor."""
    ours: tuple[float, float, float]
    floor: tuple[float, float, float] | None = None
    ratio: tuple[float, float, float] | None = None
    aim: float | None = None
    """Aim for the ratio if there is one, otherwise for the measurement."""
    at_least: bool = False

    @property
    def aimed(self) -> float:
        return (self.ratio or self.ours)[0]

    @property
    def met(self) -> bool | None:
        if self.aim is None:
            return None
        return self.aimed >= self.aim if self.at_least else self.aimed <= self.aim


def show(value: float) -> str:
    """Return a number with three significant digits and separated thousands."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def show_spread(spread: tuple[float, float, float] | None) -> str:
    """Return a median with its interval, or only the median if the interval is empty."""
    if spread is None:
        return "-"
    middle, low, high = spread
    return show(middle) if low == high else f"{show(middle)} ({show(low)} - {show(high)})"


@dataclass
class Report:
    """The results of a script. `end` prints them and returns the exit code."""

    title: str
    seed: int | None = None
    _machine: str = ""
    _lines: list[str] = field(default_factory=list)
    _broken: list[str] = field(default_factory=list)
    _headed: bool = False
    _figures: list[Figure] = field(default_factory=list)
    _series: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)

    def on(self, dsn: str) -> None:
        """Record the machine and the server of the measurement."""
        self._machine = machine(dsn)

    def spread(
        self, label: str, values: Sequence[float], *, unit: str = "ms", aims: Mapping[str, float] | None = None
    ) -> None:
        """Add a line with percentiles. `aims`: limits by percentile, in the same unit."""
        if not self._headed:
            self._lines.append(f"{'':<44}{'n':>6}" + "".join(f"{name:>10}" for name in POINTS))
            self._headed = True
        found = {name: at(values, share) for name, share in POINTS.items()}
        self._lines.append(
            f"{f'{label}, {unit}':<44}{len(values):>6}" + "".join(f"{value:>10.2f}" for value in found.values())
        )
        for name, limit in (aims or {}).items():
            self.aim(f"  {label} {name}", found[name], limit, unit=unit)

    def aim(
        self, label: str, value: float, limit: float, *, unit: str = "", more: str = "", at_least: bool = False
    ) -> None:
        """Add a line that shows whether a value meets its aim."""
        met = value >= limit if at_least else value <= limit
        sign = ">=" if at_least else "<="
        self._lines.append(f"{label}: {value:.4g} {unit}{more} (aim {sign} {limit:g}): {'met' if met else 'MISSED'}")

    def figure(
        self,
        label: str,
        ours: Sequence[float],
        floor: Sequence[float] | None = None,
        *,
        unit: str = "",
        aim: float | None = None,
        at_least: bool = False,
    ) -> None:
        """Add a line of the table.

        `floor`: values measured alternately with `ours`, so that the ratio is the median of the pairs' ratios.
        """
        pairs = None if floor is None else [one / other for one, other in zip(ours, floor, strict=True)]
        figure = Figure(
            label,
            unit,
            len(ours),
            median_with_interval(ours),
            None if floor is None else median_with_interval(floor),
            None if pairs is None else median_with_interval(pairs),
            aim,
            at_least,
        )
        self._figures.append(figure)
        line = f"{label}: {show_spread(figure.ours)} {unit}".rstrip()
        if figure.ratio is not None:
            line += f", against {show_spread(figure.floor)}: ratio {show_spread(figure.ratio)}, {len(ours)} pairs"
        self._lines.append(line + ("" if figure.met is None else f" {aim_of(figure)}"))

    def curve(self, picture: str, name: str, points: Sequence[tuple[float, float]]) -> None:
        """Add a curve of a picture, which the table does not show."""
        self._series.setdefault(picture, {})[name] = list(points)

    def fact(self, label: str, value: object) -> None:
        """Add a line with one value."""
        self._lines.append(f"{label}: {value}")

    def holds(self, invariant: str, holds: bool, found: object = "") -> None:
        """Add a line with an invariant. If it is broken, the script fails and prints what was found."""
        self._lines.append(f"{'holds ' if holds else 'BROKEN'}  {invariant}" + (f": {found}" if str(found) else ""))
        if not holds:
            self._broken.append(invariant)

    @property
    def is_broken(self) -> bool:
        return bool(self._broken)

    @property
    def broken(self) -> list[str]:
        """Return the invariants that do not hold."""
        return list(self._broken)

    def end(self) -> int:
        """Print everything and return the exit code."""
        print(f"# {self.title}")
        print(f"# {self._machine}" + (f", seed {self.seed}" if self.seed is not None else ""))
        print("\n".join(self._lines))
        if folder := os.environ.get(FOLDER):
            name = self.title.partition(":")[0]
            record = {
                "title": self.title,
                "machine": self._machine,
                "figures": [asdict(figure) for figure in self._figures],
                "curves": self._series,
                "broken": self._broken,
            }
            (Path(folder) / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        if self._broken:
            print(
                f"{len(self._broken)} invariants are broken" + (f"; seed {self.seed}" if self.seed is not None else "")
            )
        return 1 if self._broken else 0


def aim_of(figure: Figure) -> str:
    """Return the aim of a figure and whether it was met."""
    if figure.aim is None:
        return ""
    return f"(aim {'>=' if figure.at_least else '<='} {figure.aim:g}: {'met' if figure.met else 'MISSED'})"


def machine(dsn: str) -> str:
    """Return where and when the measurement ran, as one line."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.info.parameter_status("server_version") or "?"
    load = os.getloadavg()[0]
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"psycopg {psycopg.__version__}, PostgreSQL {version.split()[0]}, load {load:.1f}"
    )
