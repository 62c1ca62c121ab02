"""`status`: shows supervisors, child processes, jobs and queues, as the database sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.cli import console, remote_workers
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import Command
from jobherd.supervisor.cli.console import Column, paint, plain, show_span
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.queues import print_gates, print_queues

if TYPE_CHECKING:
    import argparse

_CHILDREN: Final = (
    Column("SLOT", right=True), Column("KIND"), Column("PID", right=True), Column("UP", right=True),
    Column("CLAIMED", right=True),
    Column("FOR", right=True), Column("WORKS ON", least=10),
)  # fmt: skip


def _status(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        supervisors, children, sessions, queues = (
            at.rows("observe/list_supervisors"),
            at.rows("observe/list_children"),
            at.rows("observe/list_sessions", {"most": 1000}),
            at.rows("observe/list_queues"),
        )
        gates = at.rows("observe/list_limits", {"most": 1000})
    for supervisor in supervisors:
        supervisor["children"] = [child for child in children if child["supervisor"] == supervisor["id"]]
    orphans = remote_workers.assign(sessions, supervisors)
    if arguments.json:
        console.print_json({"supervisors": supervisors, "orphans": orphans, "queues": queues, "gates": gates})
        return ExitCode.DONE
    for supervisor in supervisors:
        _print_supervisor(supervisor)
    remote_workers.print_orphans(orphans)
    if not any(not supervisor["expired"] for supervisor in supervisors):
        print(paint("No supervisor holds a lease: nothing runs. Start one with `jobherd run`.", "red") + "\n")
    if queues:
        print_queues(queues)
    else:
        print("Nothing waits, nothing runs.")
    if gates:
        print_gates(gates)
    return ExitCode.DONE


def _print_supervisor(supervisor: dict[str, Any]) -> None:
    if supervisor["expired"]:
        lease = paint(f"lease expired {show_span(supervisor['lease_left'])} ago", "red")
    else:
        lease = f"lease renewed {show_span(supervisor['beat_age'])} ago, good for {show_span(supervisor['lease_left'])}"
    name = paint(f"supervisor {supervisor['id']}", "bold")
    print(
        f"{name}  {plain(supervisor['host'])}/{supervisor['pid']}  {plain(supervisor['version'])}  up "
        f"{show_span(supervisor['up_for'])}"
    )
    print(f"  {lease}")
    rows = [
        (
            child["slot"], child["kind"], child["pid"], show_span(child["up_for"]),
            child["running"], show_span(child["held_for"]),
            f"{child['job']} {child['job_kind']}" if child["job"] else "",
        )
        for child in supervisor["children"]
    ]  # fmt: skip
    if rows:
        console.print_table(_CHILDREN, rows)
    remote_workers.print_table(supervisor["sessions"])
    print()


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


COMMANDS: Final = (
    Command(
        "status",
        "show supervisors, child processes and queues",
        "  jobherd status --json",
        _nothing,
        _status,
        about="Show what the database stores: supervisors on every host, their workers and maintenance processes, "
        "remote workers, the queues. The process that\n"
        "serves metrics and health claims no jobs and is not in the database: query it at its address (--http of "
        "jobherd run).",
        lists=True,
        spans="each",
    ),
)
