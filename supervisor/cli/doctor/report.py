"""Prints the report of `jobherd doctor`: first what needs attention, then the findings. Judges nothing."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.console import paint, plain, plain_lines
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    from jobherd.supervisor.cli.doctor.finding import Finding
    from jobherd.workers.inspect.attention import Item

_LONGEST: Final = 6
"""Most lines of a fix that a terminal shows."""
_COLOURS: Final = {"ok": "green", "note": "yellow", "wrong": "red"}


def print_report(findings: list[Finding], wrong: int, items: list[Item]) -> None:
    """Print the report.

    Args:
        findings: of all checks.
        wrong: how many of them are `wrong`.
        items: what needs attention, as the dashboard shows it.
    """
    for item in items:
        lines = textwrap.wrap(plain(item.text), console.width() - 2)
        print(paint("\n  ".join(["! " + lines[0], *lines[1:]]), "red" if item.is_severe else "yellow"))
    if items:
        print()
    wide = max(len(finding.about) for finding in findings)
    for finding in findings:
        head = f"{paint(f'{finding.weight:<5}', _COLOURS[finding.weight])}  {finding.about:<{wide}}  "
        lines = textwrap.wrap(plain(finding.text), console.width() - wide - 9) or [""]
        print(head + f"\n{' ' * (wide + 9)}".join(lines))
        if finding.remedy:
            indent = " " * (wide + 9)
            lines = plain_lines(finding.remedy).splitlines()
            if len(lines) > _LONGEST:
                lines[_LONGEST - 1 :] = [f"... {len(lines) - _LONGEST + 1} more lines: see --json"]
            print("\n".join(indent + paint(line, "dim") for line in lines))
    notes = sum(finding.weight == "note" for finding in findings)
    also = f", {count(notes, 'note', 'notes')}" if notes else ""
    print()
    if wrong:
        print(paint(count(wrong, "problem", "problems"), "red") + also)
    elif items:
        needing = count(len(items), "condition needs", "conditions need")
        print(paint(f"{needing} attention", "yellow") + also)
    else:
        print(paint("no problems", "green") + also)
