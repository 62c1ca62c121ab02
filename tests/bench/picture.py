"""Draws figures as SVG: bars with their intervals, and lines.

The pictures are readable on light and on dark pages, and need no other package.

A picture contains nothing that is not in the table next to it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tests.support.figures import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.figures import Figure

WIDTH, LEFT, RIGHT = 880, 430, 110
COLOURS = ("#2f81f7", "#8b949e", "#3fb950", "#d29922")
STYLE = "text{font:12px system-ui,sans-serif;fill:#57606a}.t{font-weight:600}@media(prefers-color-scheme:dark){text{fill:#adbac7}}"


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title, quote=True)}">'
    inner = [f"<style>{STYLE}</style>", f'<text x="8" y="20" class="t">{escape(title)}</text>', *parts]
    return "\n".join([head, *inner, "</svg>"]) + "\n"


def bars(title: str, figures: Sequence[Figure]) -> str:
    """Draw each figure that has a value to compare with.

    Jobherd is above, the other below, and each pair has its own scale.
    """
    parts: list[str] = []
    y = 36.0
    for figure in figures:
        if figure.floor is None:
            continue
        most = max(figure.ours[2], figure.floor[2]) or 1
        scale = (WIDTH - LEFT - RIGHT) / most
        parts.append(f'<text x="{LEFT - 10}" y="{y + 15:g}" text-anchor="end">{escape(figure.label)}</text>')
        for colour, (middle, low, high) in zip(COLOURS, (figure.ours, figure.floor), strict=False):
            parts.append(f'<rect x="{LEFT}" y="{y:g}" width="{middle * scale:.1f}" height="9" fill="{colour}"/>')
            if low != high:
                path = f"M{LEFT + low * scale:.1f} {y + 4.5:g}H{LEFT + high * scale:.1f}"
                parts.append(f'<path d="{path}" stroke="#d1242f" stroke-width="1.5"/>')
            right = LEFT + max(middle, high) * scale + 5
            parts.append(f'<text x="{right:.1f}" y="{y + 9:g}">{show(middle)} {escape(figure.unit)}</text>')
            y += 11
        y += 10
    return _svg(y + 6, title, parts)


def lines(title: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Draw curves over a common axis; both axes begin at zero."""
    height, left, top, bottom = 260, 60, 36, 30
    points = [(x, y) for curve in curves.values() for x, y in curve if y == y]  # Not NaN.
    far, high = max(x for x, _ in points) or 1, max(y for _, y in points) or 1
    wide, tall = WIDTH - left - RIGHT, height - top - bottom
    axis = f"M{left} {top}V{height - bottom}H{WIDTH - RIGHT}"
    parts = [f'<path d="{axis}" fill="none" stroke="#8b949e"/>']
    for share in (0, 0.5, 1):
        y, x = top + tall * (1 - share), left + wide * share
        parts.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{show(high * share)}</text>')
        parts.append(f'<text x="{x:g}" y="{height - 10}" text-anchor="middle">{show(far * share)}</text>')
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        drawn = [(left + wide * x / far, top + tall * (1 - y / high)) for x, y in curve if y == y]
        parts.append(
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{drawn[-1][0] + 6:.1f}" y="{drawn[-1][1] + 4:.1f}">{escape(name)}</text>')
    return _svg(height, title, parts)


def panels(title: str, parts: Sequence[tuple[str, Mapping[str, Sequence[Sequence[float]]]]]) -> str:
    """Draw several pictures of curves, one below another."""
    height = 260
    drawn = [
        lines(name, curves).replace(
            "<svg ", f'<svg x="0" y="{30 + number * height}" width="{WIDTH}" height="{height}" ', 1
        )
        for number, (name, curves) in enumerate(parts)
    ]
    return _svg(30 + len(parts) * height, title, drawn)
