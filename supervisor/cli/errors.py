"""`errors`: lists what fails, grouped by kind, exception class and place, as the dashboard's page of errors does.

Retrying jobs count as well as those that have failed permanently. `workers/inspect/failures.py` groups.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import Command, row_limit, span
from jobherd.supervisor.cli.console import Column, show_span
from jobherd.supervisor.cli.database import session
from jobherd.workers.inspect.failures import groups

if TYPE_CHECKING:
    from jobherd.workers.inspect.failures import Group

MOST: Final = 1000
"""Jobs that are grouped, of those that failed and of those that retry."""
LONGEST: Final = 366 * 86400.0
"""The longest time looked back on, in seconds."""
_COLUMNS: Final = (
    Column("JOBS", right=True), Column("RETRYING", right=True), Column("ERROR", least=10), Column("KIND", least=8),
    Column("PLACE", least=8), Column("LAST", right=True), Column("FIRST", right=True), Column("EXAMPLE", right=True),
)  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=_reach, default=86400.0, metavar="SPAN", help="how far back, such as 15m or 7d (default 24h)"
    )
    parser.add_argument("--kind", help="only errors of this kind")
    parser.add_argument(
        "--limit", type=row_limit, default=50, metavar="N", help="how many groups at most, 1 to 10000 (default 50)"
    )


def _reach(text: str) -> float:
    seconds = span(text)
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: expected more than 0 and at most 366d")
    return seconds


def _errors(arguments: argparse.Namespace) -> int:
    wanted = {"seconds": arguments.since, "most": MOST, "kind": arguments.kind, "hidden": []}
    with session(arguments) as at:
        rows = at.rows("observe/list_failing", wanted)
    found = groups(rows, arguments.since)
    shown = found[: arguments.limit]
    ago = {row["id"]: float(row["ago"]) for row in rows}
    if arguments.json:
        console.print_json([_document(group) for group in shown])
        return ExitCode.DONE
    if not found:
        console.complain("no job has failed, expired or is retrying in this time")
        return ExitCode.DONE
    console.print_table(_COLUMNS, [_line(group, ago) for group in shown])
    if left := len(found) - len(shown):
        console.complain(f"{left:,} smaller groups are not shown: --limit {min(len(found), 10_000)}")
    if rows[0]["cut"]:
        console.complain(f"only the newest {MOST:,} jobs that failed and the next {MOST:,} that retry are grouped")
    return ExitCode.DONE


def _line(group: Group, ago: dict[int, float]) -> tuple[object, ...]:
    last, first = (show_span(ago[group.ids[place]]) for place in (0, -1))
    retrying = group.retrying or None
    return (group.total, retrying, group.error, group.kind, group.place or None, last, first, group.sample["id"])


def _document(group: Group) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "error": group.error,
        "place": group.place or None,
        "failed": group.jobs,
        "retrying": group.retrying,
        "attempts": group.attempts,
        "first_at": group.first_at,
        "last_at": group.last_at,
        "trend": group.trend,
        "example": group.sample["id"],
        "message": group.sample["error"],
    }


COMMANDS: Final = (
    Command(
        "errors",
        "list what fails, grouped by kind, exception and place",
        "  jobherd errors\n  jobherd errors --since 1h --kind mail:receipt --json",
        _arguments,
        _errors,
        about="List what fails, grouped by kind, exception class and place, the group with most jobs first. "
        "Retrying jobs count too.",
        lists=True,
    ),
)
