"""Lists remote workers for `fleet` and `status`, under the supervisors that serve them.

It formats rows of `sql/queries/observe/list_sessions.sql` and queries nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.console import Column, paint, show_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, Any]

_COLUMNS: Final = (
    Column("REMOTE WORKER", least=13), Column("STATE", least=9), Column("CLIENT"), Column("TASKS", right=True),
    Column("UP", right=True), Column("SEEN", right=True), Column("WORKS ON", least=20),
)  # fmt: skip


def assign(sessions: Sequence[Row], supervisors: Sequence[Row]) -> list[Row]:
    """Give each supervisor its `sessions`. Return those of supervisors that are not in the list."""
    for supervisor in supervisors:
        supervisor["sessions"] = [one for one in sessions if one["via"] == supervisor["id"]]
    known = {supervisor["id"] for supervisor in supervisors}
    return [one for one in sessions if one["via"] not in known]


def print_table(sessions: Sequence[Row]) -> None:
    """Print remote workers as a table."""
    if sessions:
        colors = [{1: "green" if one["connected"] else "red"} for one in sessions]
        console.print_table(_COLUMNS, [_row(one) for one in sessions], colours=colors)


def print_orphans(sessions: Sequence[Row]) -> None:
    """Print remote workers whose supervisor has exited, so that they must resume at another gateway."""
    if sessions:
        print(paint("remote workers without a gateway: they resume at another one, or their leases expire", "red"))
        print_table(sessions)
        print()


def _row(one: Row) -> tuple[object, ...]:
    work = f"{one['job_kind']} #{one['job']} for {show_span(one['held_for'])}" if one["job"] else ""
    return (
        one["worker"], "connected" if one["connected"] else "away", one["client"], one["tasks"] or None,
        show_span(one["up_for"]), f"{show_span(one['seen_age'])} ago", work,
    )  # fmt: skip
