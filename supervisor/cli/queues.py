"""Defines `queues`, `pause` and `resume`. Limits are in `limits.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.durations import seconds
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command
from jobherd.supervisor.cli.console import Column, show_span
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.kinds import suggest_kind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_COLUMNS: Final = (
    Column("QUEUE", least=12), Column("READY", right=True), Column("SCHEDULED", right=True),
    Column("RUNNING", right=True),
    Column("RETRYING", right=True), Column("OLDEST", right=True), Column("PAUSED", least=10),
)  # fmt: skip

_GATES: Final = (
    Column("SCOPE"), Column("NAME", least=12), Column("RUNNING", right=True), Column("RATE", right=True),
    Column("PARTITIONS"), Column("PAUSED", least=10),
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


def _paused(gate: dict[str, Any]) -> str:
    if not gate["paused"]:
        return ""
    until = f", until {console.show_moment(gate['resume_at'])}" if gate["resume_at"] else ""
    return f"by {gate['paused_by']}{until}" + (f": {gate['reason']}" if gate["reason"] else "")


def is_ruled(gate: dict[str, Any]) -> bool:
    """Return whether a queue or kind has a limit or fair turns."""
    return any(gate[name] is not None for name in ("max_running", "rate", "each_running", "each_rate", "weights"))


def show_partitions(gate: dict[str, Any]) -> str:
    """Return the rules for the partitions of a queue."""
    said = [] if gate["each_running"] is None else [f"{gate['each_running']} each"]
    said += [] if gate["each_rate"] is None else [f"{gate['each_rate']} each"]
    said += ["in order"] if gate["in_order"] else []
    if (weights := gate["weights"]) is not None:
        said.append(" ".join(("turns", *weights[:3])) + (" ..." if len(weights) > 3 else ""))
    return ", ".join(said)


def print_gates(gates: Sequence[dict[str, Any]]) -> None:
    """Print pauses and limits that the table of queues does not show."""
    rows = [
        (
            gate["scope"], "everything" if gate["scope"] == "all" else gate["name"],
            "" if gate["max_running"] is None else f"{gate['running']} of {gate['max_running']}", gate["rate"] or "",
            show_partitions(gate), _paused(gate),
        )
        for gate in gates
    ]  # fmt: skip
    print()
    console.print_table(_GATES, rows, colours=[{5: "yellow"} for _ in rows])


def _queues(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        queues, gates = at.rows("observe/list_queues"), at.rows("observe/list_limits", {"most": 1000})
    beyond = [gate for gate in gates if gate["scope"] != "queue" or is_ruled(gate)]
    if arguments.json:
        console.print_json(queues)
    elif queues or beyond:
        print_queues(queues)
        if beyond:
            print_gates(beyond)
    else:
        console.complain("no queue holds a job, none is paused or limited")
    return ExitCode.DONE


def _names_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="a queue; '*' for everything")
    parser.add_argument("--kind", metavar="KIND", help="jobs of this kind instead, whatever their queue")
    parser.add_argument("--all", action="store_true", help="everything: all queues and kinds")


def gate_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that name the queue or kind. Raises CommandError."""
    if getattr(arguments, "all", False):
        if arguments.queue is not None or arguments.kind is not None:
            raise CommandError("--all excludes a queue and --kind: give one of them", ExitCode.USAGE)
        arguments.queue = "*"
    if (arguments.queue is None) == (arguments.kind is None):
        raise CommandError(
            "say which queue, or which --kind" + (", not both" if arguments.kind else ""), ExitCode.USAGE
        )
    if ":" in (arguments.queue or ""):
        raise CommandError(
            f"{arguments.queue!r} is not a queue name; if it is a kind: --kind {arguments.queue}", ExitCode.USAGE
        )
    return {"queue": arguments.queue, "kind": arguments.kind}


def called(arguments: argparse.Namespace) -> str:
    """Return how messages name the queue or kind."""
    return "everything" if arguments.queue == "*" else arguments.queue or arguments.kind


def _pause_arguments(parser: argparse.ArgumentParser) -> None:
    _names_gate(parser)
    parser.add_argument("--reason", metavar="TEXT", help="reason, shown by `jobherd queues`")
    parser.add_argument(
        "--by",
        metavar="NAME",
        help="name in the audit log, such as anna@web1; default: the user and host that run this command",
    )
    parser.add_argument(
        "--for", metavar="TIME", dest="span", help='resume automatically after this time, such as "30m"'
    )
    parser.add_argument("--until", metavar="TIMESTAMP", help="resume automatically at this time")


def _pause(arguments: argparse.Namespace) -> int:
    if arguments.span and arguments.until:
        raise CommandError("--for and --until exclude each other: give one of them", ExitCode.USAGE)
    try:
        delay = seconds(arguments.span, field="--for") if arguments.span else None
    except (TypeError, ValueError) as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
    with session(arguments) as at:
        wanted = {
            **gate_of(arguments),
            "reason": arguments.reason,
            "resume_at": arguments.until,
            "delay": delay,
            "actor": arguments.by or actor(),
        }
        changed = at.row("control/pause_claims", wanted)["changed"]
        suggest_kind(at, arguments.kind)
    print(f"{called(arguments)} is paused" if changed else f"{called(arguments)} was paused already")
    return ExitCode.DONE


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    _names_gate(parser)
    parser.add_argument("--reason", metavar="TEXT", help="reason, for the audit log")


def _resume(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        given = {**gate_of(arguments), "actor": actor(), "reason": arguments.reason}
        changed = at.row("control/resume_claims", given)["changed"]
        suggest_kind(at, arguments.kind)
    print(f"{called(arguments)} is resumed" if changed else f"{called(arguments)} was not paused")
    return ExitCode.DONE


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


COMMANDS: Final = (
    Command(
        "queues",
        "list queues with their depth, age and pauses",
        "  jobherd queues --json",
        _nothing,
        _queues,
        lists=True,
        spans="each",
    ),
    Command(
        "pause",
        "pause a queue, a kind or everything",
        '  jobherd pause mail --reason "the provider is down" --for 1h\n'
        "  jobherd pause --kind mail:receipt\n  jobherd pause --all",
        _pause_arguments,
        _pause,
        about="Pause a queue, a kind or everything: no worker on any host claims its jobs until you resume it. "
        "Running jobs continue.\n"
        "Claimed jobs that have not started are released.",
    ),
    Command("resume", "resume a queue, a kind or everything", "  jobherd resume mail", _resume_arguments, _resume),
)
