"""Divides the screen of `top`: rows over the panels, columns over the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.cli.top.panel import Column

GAP: Final = 2
"""Terminal columns between two columns."""


def share(wants: Sequence[int], space: int, *, first: int) -> list[int]:
    """Return how many rows each panel gets: one each in turn, two for the panel `first`.

    >>> share([1, 3, 40, 40], 17, first=2)
    [1, 3, 9, 4]
    """
    given = [0] * len(wants)
    while space > 0 and any(have < want for have, want in zip(given, wants, strict=True)):
        for place in (first, *range(len(wants))):
            if space > 0 and given[place] < wants[place]:
                given[place] += 1
                space -= 1
    return given


def fit(columns: Sequence[Column], wide: Sequence[int], width: int) -> dict[int, int]:
    """Return the columns that fit, by number, with their widths. `wide`: the preferred widths."""
    kept = {place: max(wide[place], cell_len(column.title)) for place, column in enumerate(columns)}

    def over() -> int:
        return sum(kept.values()) + GAP * (len(kept) - 1) - width

    while over() > 0:
        able = [place for place in kept if columns[place].least and kept[place] > columns[place].least]
        if able:
            kept[max(able, key=lambda place: kept[place])] -= 1
            continue
        spare = [place for place in kept if columns[place].spare]
        if not spare:
            break
        del kept[max(spare, key=lambda place: columns[place].spare)]
        kept = {place: max(wide[place], cell_len(columns[place].title)) for place in kept}
    for place in kept:
        if columns[place].grows and over() < 0:
            kept[place] -= over()
    return kept
