"""The figures of a measurement: a short table of percentiles, aims that are met or missed, and invariants that hold or are broken.

Only a broken invariant makes a script fail. An aim is a time, and times depend on who else uses the machine: it is printed and not more.
"""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POINTS: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def at(values: Sequence[float], share: float) -> float:
    """The value that so many of the values do not exceed (nearest rank); nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else float("nan")


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval by order statistics: of ten values the second and the ninth."""
    ordered, count = sorted(values), len(values)
    cut, below = 0, 1.0
    while cut < count // 2 and 2 * (below + math.comb(count, cut + 1)) / 2**count <= 0.05:
        cut += 1
        below += math.comb(count, cut)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2, ordered[cut], ordered[count - 1 - cut]


@dataclass
class Report:
    """What a script has found. `end` prints it and gives the exit code."""

    title: str
    seed: int | None = None
    _machine: str = ""
    _lines: list[str] = field(default_factory=list)
    _broken: list[str] = field(default_factory=list)
    _headed: bool = False

    def on(self, dsn: str) -> None:
        """Note where it is measured."""
        self._machine = machine(dsn)

    def spread(self, label: str, values: Sequence[float], *, unit: str = "ms", aims: Mapping[str, float] | None = None) -> None:
        """A line with the percentiles of some values; `aims` by percentile, as limits in the same unit."""
        if not self._headed:
            self._lines.append(f"{'':<44}{'n':>6}" + "".join(f"{name:>10}" for name in POINTS))
            self._headed = True
        found = {name: at(values, share) for name, share in POINTS.items()}
        self._lines.append(f"{f'{label}, {unit}':<44}{len(values):>6}" + "".join(f"{value:>10.2f}" for value in found.values()))
        for name, limit in (aims or {}).items():
            self.aim(f"  {label} {name}", found[name], limit, unit=unit)

    def aim(self, label: str, value: float, limit: float, *, unit: str = "", more: str = "", at_least: bool = False) -> None:
        """A line that says whether a figure is within what we aim at."""
        met = value >= limit if at_least else value <= limit
        sign = ">=" if at_least else "<="
        self._lines.append(f"{label}: {value:.4g} {unit}{more} (aim {sign} {limit:g}): {'met' if met else 'MISSED'}")

    def fact(self, label: str, value: object) -> None:
        """A line with one figure."""
        self._lines.append(f"{label}: {value}")

    def holds(self, invariant: str, holds: bool, found: object = "") -> None:
        """A line with an invariant. If it is broken the script fails, with what was found."""
        self._lines.append(f"{'holds ' if holds else 'BROKEN'}  {invariant}" + (f": {found}" if str(found) else ""))
        if not holds:
            self._broken.append(invariant)

    @property
    def is_broken(self) -> bool:
        return bool(self._broken)

    def end(self) -> int:
        """Print everything and return the exit code."""
        print(f"# {self.title}")
        print(f"# {self._machine}" + (f", seed {self.seed}" if self.seed is not None else ""))
        print("\n".join(self._lines))
        if self._broken:
            print(f"{len(self._broken)} invariants are broken" + (f"; seed {self.seed}" if self.seed is not None else ""))
        return 1 if self._broken else 0


def machine(dsn: str) -> str:
    """Where and when this was measured, on one line."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.info.parameter_status("server_version") or "?"
    load = os.getloadavg()[0]
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"psycopg {psycopg.__version__}, PostgreSQL {version.split()[0]}, load {load:.1f}"
    )
