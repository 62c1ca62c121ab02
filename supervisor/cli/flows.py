"""`flows` and `flow`: list chains, groups and graphs of jobs, show one, cancel it or run it again."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import LARGEST_ID, Command, is_id, row_limit
from jobherd.supervisor.cli.console import Column, paint, plain
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_text import document, since
from jobherd.workers.inspect.failures import error_name

_STATES: Final = ("open", "completed", "failed", "cancelled")
_COLUMNS: Final = (
    Column("FLOW", right=True), Column("NAME", least=12), Column("STATE"), Column("LEFT", right=True),
    Column("DONE", right=True), Column("FAILED", right=True), Column("DURATION", right=True),
)  # fmt: skip
_NODES: Final = (
    Column("NODE", least=16), Column("WAITS FOR", least=10), Column("JOB", right=True), Column("STATE", least=12),
    Column("ERROR", least=8),
)  # fmt: skip


def _flows_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=_STATES, help="only flows in this state")
    parser.add_argument(
        "--limit", type=row_limit, default=50, metavar="N", help="how many at most, 1 to 10000 (default 50)"
    )


def _flows(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        found = at.rows(
            "observe/list_flows",
            {"state": arguments.state, "name": None, "before": LARGEST_ID, "limit": arguments.limit},
        )
    if arguments.json:
        console.print_json([document(flow) for flow in found])
    elif found:
        console.print_table(_COLUMNS, [_line(flow) for flow in found])
    else:
        console.complain("no flow found" + (f" in state {arguments.state}" if arguments.state else ""))
    return ExitCode.DONE


def _line(flow: dict[str, Any]) -> tuple[object, ...]:
    duration = since(flow["created_at"], flow["ended_at"] or flow["asked_at"])
    return (flow["id"], flow["name"], flow["state"], flow["pending"], flow["completed"], flow["failed"], duration)


def _flow_id(text: str) -> int:
    """Parse the ID of a flow, for argparse."""
    if not is_id(text):
        message = f"{text[:40]!r} is not a flow's id: a whole number, as `jobherd flows` prints it"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _flow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=tuple(_RUN), help="what to do")
    parser.add_argument("id", type=_flow_id, metavar="ID", help="the flow's id")
    parser.add_argument("--reason", metavar="TEXT", help="reason, for the audit log")
    parser.add_argument(
        "--from",
        dest="node",
        metavar="NODE",
        help="with retry: run this node and all nodes behind it again; nodes whose results they need run again too, "
        "unless they completed",
    )


def _flow(arguments: argparse.Namespace) -> int:
    if arguments.node is not None and arguments.action != "retry":
        raise CommandError("--from requires retry", ExitCode.USAGE)
    return _RUN[arguments.action](arguments)


def _tree(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        found = at.rows("observe/show_flow", {"id": arguments.id})
        nodes = at.rows("observe/list_flow_nodes", {"id": arguments.id})
    if not found:
        raise CommandError(f"flow {arguments.id} not found", ExitCode.WRONG)
    flow = found[0]
    nodes = [node | {name: _parsed(node[name]) for name in ("waits_for", "states")} for node in nodes]
    if arguments.json:
        console.print_json(document({**flow, "nodes": nodes}))
        return ExitCode.DONE
    state = paint(flow["state"], console.STATE_COLOURS.get(flow["state"], ""))
    title = paint(f"flow {flow['id']}", "bold")
    print(
        f"{title}  {plain(flow['name'])}  {state}  "
        f"{flow['pending']:,} left, {flow['completed']:,} completed, {flow['failed']:,} failed, "
        f"{flow['cancelled']:,} cancelled"
    )
    named = [f"version {flow['version']}"] if flow["version"] is not None else []
    named += [f"unique key {plain(flow['unique_key'])}"] if flow["unique_key"] is not None else []
    if named:
        print(", ".join(named))
    if flow["stopping"]:
        print(f"being canceled: {plain(flow['stopping'])}")
    if not flow["sealed"]:
        print(f"not sealed: programs can add jobs until `jobherd flow seal {flow['id']}`")
    print()
    console.print_table(_NODES, [_node_line(node) for node in nodes])
    return ExitCode.DONE


def _node_line(node: dict[str, Any]) -> tuple[object, ...]:
    waits = f"the flow ({node['runs_on']})" if node["runs_on"] else ", ".join(map(str, node["waits_for"] or []))
    states = node["states"] or {}
    shown = next(iter(states)) if list(states.values()) == [1] else ", ".join(f"{n:,} {s}" for s, n in states.items())
    error = error_name(node["error_code"], None, node["error"]) if node["error_code"] else None
    return (node["node"], waits, node["job"], shown, error)


def _cancel(arguments: argparse.Namespace) -> int:
    answer = _answer(arguments, "control/cancel_flow")
    if answer != "cancelling":
        raise CommandError(f"flow {arguments.id} is {answer}: too late to cancel it", ExitCode.WRONG)
    print(f"flow {arguments.id} is being canceled")
    return ExitCode.DONE


def _retry(arguments: argparse.Namespace) -> int:
    answer = _answer(arguments, "control/retry_flow", node=arguments.node)
    if answer == 0 and arguments.node is not None:
        raise CommandError(f"flow {arguments.id} is open: cancel it first, or wait for its end", ExitCode.WRONG)
    if answer == 0:
        raise CommandError(f"flow {arguments.id} has neither failed nor been canceled", ExitCode.WRONG)
    print(f"flow {arguments.id} runs again: {answer} jobs")
    return ExitCode.DONE


def _answer(arguments: argparse.Namespace, statement: str, **more: object) -> Any:
    with session(arguments) as at:
        row = at.row(statement, {"id": arguments.id, "actor": actor(), "reason": arguments.reason, **more})
    if row["answer"] is None:
        raise CommandError(f"flow {arguments.id} not found", ExitCode.WRONG)
    return row["answer"]


def _parsed(value: object) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _seal(arguments: argparse.Namespace) -> int:
    answer = _answer(arguments, "control/seal_flow")
    if answer != "sealed":
        raise CommandError(f"flow {arguments.id} is {answer} already", ExitCode.WRONG)
    print(f"flow {arguments.id} is sealed: it ends when its jobs have ended")
    return ExitCode.DONE


_RUN: Final = {"tree": _tree, "cancel": _cancel, "retry": _retry, "seal": _seal}

COMMANDS: Final = (
    Command(
        "flows",
        "list chains, groups and graphs of jobs",
        "  jobherd flows --state failed",
        _flows_arguments,
        _flows,
        lists=True,
        spans="each",
    ),
    Command(
        "flow",
        "show, cancel or seal a flow, or run it again from where it failed",
        '  jobherd flow tree 42\n  jobherd flow retry 42 --reason "the source is back"\n'
        "  jobherd flow retry 42 --from import:index",
        _flow_arguments,
        _flow,
        about="With tree, show the nodes of a flow, their states and what they wait for. With cancel, cancel all "
        "jobs that have not ended. With retry, run the failed and canceled jobs again; completed jobs stay. "
        "With retry --from, run a node and all behind it again, also of a completed flow. "
        "With seal, let a flow that was started with sealed=False end when its jobs have ended.",
        lists=True,
    ),
)
