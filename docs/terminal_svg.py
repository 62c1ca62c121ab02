# ruff: noqa: INP001  # part of a script, no package
"""What a terminal shows, and the SVG picture of it, for `record.py`.

It runs no command: it gets the bytes that programs wrote.
"""

from __future__ import annotations

import html
import re
from typing import Final

COLUMNS: Final = 104


class Screen:
    """The lines of a terminal of COLUMNS columns: characters, each with its colors.

    It interprets line ends and colors only.
    """

    def __init__(self) -> None:
        self.lines: list[list[tuple[str, str]]] = [[]]
        self._style = ""

    def take(self, text: str) -> None:
        """Show what a program wrote."""
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r\n|\n|\r)", text):
            if part.startswith("\x1b["):
                for code in part[2:-1].split(";") if part.endswith("m") else ():
                    self._style = "" if code in {"", "0"} else f"{self._style} c{code.lstrip('0')}".strip()
            elif part in {"\r\n", "\n"}:
                self.lines.append([])
            elif part != "\r":
                for character in part:
                    if len(self.lines[-1]) >= COLUMNS:
                        self.lines.append([])
                    self.lines[-1].append((character, self._style))

    def type(self, command: str) -> None:
        """Show a prompt and what was typed."""
        self.take(f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\n")


CELL, LINE, PAD = 7.83, 18, 16
COLOURS: Final = {
    "c1": "font-weight:600;fill:#f0f3f6",
    "c2": "fill:#8b949e",
    "c31": "fill:#ff7b72",
    "c32": "fill:#7ee787",
    "c33": "fill:#e3b341",
    "c34": "fill:#79c0ff",
    "c36": "fill:#76e3ea",
}
STYLE: Final = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans "
    "Mono',monospace;fill:#c9d1d9;white-space:pre}"
    ".title{fill:#8b949e}" + "".join(f".{name}{{{look}}}" for name, look in COLOURS.items())
)


def draw(screens: list[tuple[str, Screen]]) -> str:
    """Return an SVG with the screens below each other."""
    width = COLUMNS * CELL + 2 * PAD
    parts: list[str] = []
    y = 0.0
    for title, screen in screens:
        lines = trimmed(screen.lines)
        height = len(lines) * LINE + 3.2 * PAD
        parts.append(
            f'<rect x="0.5" y="{y + 0.5:g}" width="{width - 1:g}" height="{height:g}" rx="8" '
            'fill="#0d1117" stroke="#30363d"/>'
        )
        parts += [
            f'<circle cx="{18 + 18 * n}" cy="{y + 17:g}" r="5.5" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ]
        parts.append(
            f'<text class="title" x="{width / 2:g}" y="{y + 21.5:g}" text-anchor="middle">{html.escape(title)}</text>'
        )
        for row, line in enumerate(lines):
            parts += runs(line, y + 3 * PAD + row * LINE)
        y += height + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {y - 11:g}" width="{width:g}" '
        f'height="{y - 11:g}">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def runs(line: list[tuple[str, str]], y: float) -> list[str]:
    """Return a line as SVG texts of one color each.

    Each text has its length, so that columns stay aligned in every font.
    """
    parts: list[str] = []
    at = 0
    while at < len(line):
        end = at
        while end < len(line) and line[end][1] == line[at][1]:
            end += 1
        text = "".join(character for character, _ in line[at:end])
        start, shown = at + len(text) - len(text.lstrip()), text.strip()
        if shown:
            known = " ".join(name for name in line[at][1].split() if name in COLOURS)
            parts.append(
                f'<text{f" class={chr(34)}{known}{chr(34)}" if known else ""} x="{PAD + start * CELL:.4g}" y="{y:g}" '
                f'textLength="{len(shown) * CELL:.5g}" xml:space="preserve">{html.escape(shown)}</text>'
            )
        at = end
    return parts


def trimmed(lines: list[list[tuple[str, str]]]) -> list[list[tuple[str, str]]]:
    """Return the lines without empty ones at the end."""
    last = max((number for number, line in enumerate(lines) if line), default=0)
    return lines[: last + 1]
