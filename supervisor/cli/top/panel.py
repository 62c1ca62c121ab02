"""Defines a panel of `top`: columns, orders of rows and a filter.

Only values and text: no drawing. `panels.py` has the panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.cli.top.watch import Look, Row


@dataclass(frozen=True, slots=True)
class Bar:
    """The progress of a job, drawn as wide as its column."""

    fraction: float | None
    note: str


Cell: TypeAlias = "tuple[str, str] | Bar"
"""A text and its style."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a panel.

    Args:
        title: the heading.
        cell: returns the cell of a row.
        right: align right.
        least: terminal columns to which it may shrink; 0: it never shrinks.
        grows: it takes the free space.
        spare: left out on a terminal that is too narrow, the highest number first; 0: never.
    """

    title: str
    cell: Callable[[Row], Cell]
    right: bool = False
    least: int = 0
    grows: bool = False
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of rows."""

    name: str
    key: Callable[[Row], Any]
    falling: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A table on the screen.

    Args:
        title: the heading.
        rows: returns the rows.
        name: the field that identifies a row from one query to the next.
        columns: the columns.
        sorts: the orders to choose from.
        searched: the fields that a filter searches.
        empty: the sentence shown if there are no rows.
    """

    title: str
    rows: Callable[[Look], list[Row]]
    name: str
    columns: tuple[Column, ...]
    sorts: tuple[Sort, ...]
    searched: tuple[str, ...]
    empty: str

    def shown(self, look: Look, *, sort: int, backwards: bool, wanted: str) -> list[Row]:
        """Return the rows that match the filter, in order."""
        order = self.sorts[sort % len(self.sorts)]
        words = wanted.lower().split()
        rows = [
            row
            for row in self.rows(look)
            if all(any(word in str(row.get(name) or "").lower() for name in self.searched) for word in words)
        ]
        # Sort twice: rows that compare equal keep the order of their names, and do not jump between
        # updates.
        rows.sort(key=lambda row: str(row[self.name]).rjust(20))
        rows.sort(key=order.key, reverse=order.falling != backwards)
        return rows
