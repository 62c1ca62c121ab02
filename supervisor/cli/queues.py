"""The queues: `queues`, `pause`, `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.cli import console
from supervisor.cli.codes import ExitCode
from supervisor.cli.command import Command
from supervisor.cli.console import Column, show_span
from supervisor.cli.database import session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_COLUMNS: Final = (
    Column("QUEUE", least=12), Column("READY", right=True), Column("SCHEDULED", right=True), Column("RUNNING", right=True),
    Column("RETRYING", right=True), Column("OLDEST", right=True), Column("PAUSED", least=10),
)  # fmt: skip


def print_queues(queues: Sequence[dict[str, Any]]) -> None:
    """Print the table of queues."""
    rows = [
        (
            queue["queue"], queue["ready"], queue["scheduled"], queue["running"], queue["retrying"],
            show_span(queue["oldest_age"]), _paused(queue),
        )
        for queue in queues
    ]  # fmt: skip
    console.print_table(_COLUMNS, rows, colours=[{6: "yellow"} for _ in rows])


def _paused(queue: dict[str, Any]) -> str:
    if not queue["paused"]:
        return ""
    return f"by {queue['paused_by']}" + (f": {queue['reason']}" if queue["reason"] else "")


def _queues(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        queues = at.rows("list_queues")
    if arguments.json:
        console.print_json(queues)
    elif queues:
        print_queues(queues)
    else:
        console.complain("no queue holds a job, none is paused")
    return ExitCode.DONE


def _pause_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--reason", metavar="TEXT", help="why, for those who look at `jobherd queues`")


def _pause(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        changed = at.row("pause_queue", {"queue": arguments.queue, "reason": arguments.reason})["changed"]
    print(f"{arguments.queue} is paused" if changed else f"{arguments.queue} was paused already")
    return ExitCode.DONE


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE")


def _resume(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        changed = at.row("resume_queue", {"queue": arguments.queue})["changed"]
    print(f"{arguments.queue} is resumed" if changed else f"{arguments.queue} was not paused")
    return ExitCode.DONE


def _nothing(_: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


COMMANDS: Final = (
    Command("queues", "list queues: how deep, how old, paused or not", "  jobherd queues --json", _nothing, _queues, lists=True),
    Command(
        "pause",
        "pause a queue",
        '  jobherd pause mail --reason "the provider is down"',
        _pause_arguments,
        _pause,
        about="Pause a queue: nobody claims from it, on any machine, until it is resumed. What runs goes on.",
    ),
    Command("resume", "resume a queue", "  jobherd resume mail", _resume_arguments, _resume),
)
