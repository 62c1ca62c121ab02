"""Parses the pages of the documentation: blocks of code with their marks, tables, links.

This module runs no block.

A block may have marks: HTML comments on the lines right above it.

    <!-- not run: why -->       the block is not run; the reason is required
    <!-- exits 2: why -->       its last command ends with that exit code
    <!-- stays up: why -->      its command is started, and stopped with SIGTERM at the end of the page

A Python block, or one in another language, whose first line is a comment with a path (`#
my_handlers/mail.py`) is written to that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_MARK = re.compile(r"^<!-- (not run|exits (\d+)|stays up): (.{10,}) -->$")
_PATH = re.compile(r"^# ([\w./-]+\.\w+)$")


def named(name: str) -> Path:
    """Return the page of that name, from any folder below `docs/`."""
    (found,) = (page for page in PAGES if page.stem == name)
    return found


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code."""

    page: Path
    line: int
    """The number of its first line of code."""
    language: str
    text: str
    marks: tuple[str, ...] = ()
    exits: int = 0

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def path(self) -> str | None:
        """The file that the block is written to, or None."""
        found = _PATH.match(self.text.partition("\n")[0])
        return found[1] if found else None

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block, each with the output that the page shows."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif line.startswith("> ") and found and not found[-1].shows:
                found[-1].line += "\n" + line[2:]
            elif found:
                found[-1].shows.append(line)
        return found


@dataclass(slots=True)
class Command:
    """One command of a console block."""

    line: str
    shows: list[str] = field(default_factory=list)


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next(place for place in range(at + 1, len(lines)) if lines[place].strip() == fence[1])
        marks, exits = [], 0
        above = at - 1
        while above >= 0 and (mark := _MARK.match(lines[above])):
            marks.append(mark[1].split()[0])
            exits = int(mark[2] or exits)
            above -= 1
        assert above < 0 or not re.match(r"<!-- (not run|exits|stays up)", lines[above]), (
            f"{page.name}:{above + 1}: invalid mark: {lines[above]}"
        )
        found.append(Block(page, at + 2, fence[2], "\n".join(lines[at + 1 : end]) + "\n", tuple(marks), exits))
        at = end + 1
    return found


def prose(page: Path) -> str:
    """Return the page without its blocks of code and without its comments."""
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def table(page: Path, *, heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading, without the row of titles."""
    section = prose(page).partition(f"\n## {heading}\n")[2]
    assert section, f"{page.name} has no heading {heading!r}"
    rows = re.findall(r"^\|(.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.replace(r"\|", "&#124;").split("|")] for row in rows[2:]]


def anchors(page: Path) -> set[str]:
    """Return the anchors of its headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def links(page: Path) -> list[str]:
    """Return the targets of its links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r'(?:src|href)="([^"]+)"', prose(page))


def code_words(page: Path) -> list[str]:
    """Return the texts between backticks in the prose."""
    return re.findall(r"`([^`\n]+)`", prose(page))
