"""`fleet`: lists supervisors with their child processes, and sends them fleet commands.

Both work for supervisors on any host. Fleet commands go through the database: each is a row that
the supervisor takes and answers (`supervisor/database/fleet_commands.py`). If no supervisor takes a
command in time, this module withdraws it before it gives up. So the message that the command was
not taken means that nothing will happen.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from jobherd.supervisor.cli import console, remote_workers
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, is_id
from jobherd.supervisor.cli.console import Column, paint, plain, show_span
from jobherd.supervisor.cli.database import own_words, session
from jobherd.workers.database.errors import takes_no_writes
from jobherd.workers.inspect.phrases import count, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.supervisor.cli.database import Session

ACTIONS: Final = ("drain", "add", "remove", "reload")
PATIENCE: Final = 10.0
"""Seconds to wait for a fleet command; a supervisor checks for commands every 5 s at the latest."""
RELOADING: Final = 60.0
"""Seconds to wait for the answer to a reload.

The supervisor answers when the first worker has loaded the new code, or could not load it.
"""
GLANCE: Final = 0.05
FRESH: Final = 2.0
"""Seconds that a listing waits for new reports of the supervisors.

Then it shows their last ones.
"""
MOST: Final = 1000
_COLUMNS: Final = (
    Column("CHILD"), Column("STATE", least=8), Column("PID", right=True), Column("CPU", right=True),
    Column("MEM", right=True),
    Column("JOBS", right=True), Column("CLAIMED", right=True), Column("RESTARTS", right=True),
    Column("WORKS ON", least=10),
)  # fmt: skip
_SPARSE: Final = _COLUMNS[6:8]
"""Columns that are left out if no child process has anything in them."""
_STATES: Final = {
    "computing": "green",
    "waiting": "cyan",
    "booting": "yellow",
    "leaving": "yellow",
    "stopped": "red",
    "resting": "red",
}

_REMOTE: Final = (
    "it is the remote worker {worker}, which takes no fleet commands: on its host, send a signal to `jobherd work` "
    "(TERM drains, HUP reloads, TTIN and TTOU add and remove a worker)"
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=ACTIONS, help="the fleet command; default: list the supervisors")
    parser.add_argument(
        "supervisors",
        nargs="*",
        type=_supervisor_id,
        metavar="ID",
        help="a supervisor's number, as this command lists it",
    )
    parser.add_argument("--reason", metavar="TEXT", help="reason, for the audit log")


def _supervisor_id(text: str) -> int:
    if not is_id(text):
        message = f"{text[:40]!r} is not a supervisor's number, as `jobherd fleet` lists it"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _fleet(arguments: argparse.Namespace) -> int:
    if arguments.action is None:
        return _list(arguments)
    if not arguments.supervisors:
        raise CommandError(
            f"name a supervisor: `jobherd fleet {arguments.action} ID`; `jobherd fleet` lists them", ExitCode.USAGE
        )
    answers = []
    with session(arguments) as at:
        remote = {one["id"]: one["worker"] for one in at.rows("observe/list_sessions", {"most": MOST})}
        for number in dict.fromkeys(arguments.supervisors):
            said: dict[str, Any] = (
                {"answer": None, "error": _REMOTE.format(worker=remote[number])}
                if number in remote
                else _order(at, number, arguments.action, arguments.reason)
            )
            answers.append({"supervisor": number, **said})
            if not arguments.json:
                words = plain(said["error"] or _words(arguments.action, said["answer"]))
                words = words.removeprefix(f"supervisor {number} ")  # the server's messages begin so
                print(f"supervisor {number}: {paint(words, 'red') if said['error'] else words}", flush=True)
    if arguments.json:
        console.print_json(answers)
    return ExitCode.WRONG if any(one["error"] for one in answers) else ExitCode.DONE


def _order(at: Session, supervisor: int, name: str, reason: str | None) -> dict[str, Any]:
    wanted = {"supervisor": supervisor, "name": name, "arguments": "{}", "actor": actor(), "reason": reason}
    try:
        number = at.row("control/send_fleet_command", wanted)["id"]
    except (errors.InvalidParameterValue, errors.ProgramLimitExceeded) as problem:
        if takes_no_writes(problem):
            raise
        return {"answer": None, "error": own_words(problem)}
    look, patience = partial(at.row, "control/show_fleet_command", {"order": number}), PATIENCE
    row = _wait(look, PATIENCE)
    if name == "reload" and row["done_at"] is None and row["taken_at"] is not None:
        patience = RELOADING
        row = _wait(look, RELOADING - PATIENCE)
    if row["done_at"] is None and at.row("control/withdraw_fleet_command", {"order": number})["withdrawn"]:
        return {
            "answer": None,
            "error": f"the supervisor did not take the fleet command within {PATIENCE:.0f} s; it is withdrawn",
        }
    if row["done_at"] is None:
        row = at.row("control/show_fleet_command", {"order": number})
    if row["done_at"] is None:
        return {"answer": None, "error": f"it took the fleet command and did not answer within {patience:.0f} s"}
    return {"answer": json.loads(row["answer"]) if row["answer"] else None, "error": row["error"]}


def _wait(look: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while (row := look())["done_at"] is None and time.monotonic() < until:
        time.sleep(GLANCE)
    return row


def _words(action: str, answer: Mapping[str, Any]) -> str:
    match action:
        case "drain":
            running = answer.get("running", 0)
            return (
                f"it drains; {running} {'job runs' if running == 1 else 'jobs run'}, and it exits when no "
                "job runs any more"
            )
        case "reload":
            return answer.get("problem") or "the new code loads; its workers are replaced one by one"
    return f"{count(answer.get('workers', 0), 'worker is', 'workers are')} wanted now"


# -- the list


def _list(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        supervisors = at.rows("observe/list_fleet", {"most": MOST})
        if _ask(at, supervisors):
            supervisors = at.rows("observe/list_fleet", {"most": MOST})
        orphans = remote_workers.assign(at.rows("observe/list_sessions", {"most": MOST}), supervisors)
    if arguments.json:
        console.print_json(supervisors)
        return ExitCode.DONE
    for supervisor in supervisors:
        _print(supervisor)
    remote_workers.print_orphans(orphans)
    if not any(not supervisor["expired"] for supervisor in supervisors):
        print(paint("No supervisor holds a lease: nothing runs. Start one with `jobherd run`.", "red"))
    return ExitCode.DONE


def _ask(at: Session, supervisors: list[dict[str, Any]]) -> bool:
    """Request a new report from each live supervisor; return whether a request was sent."""
    asked = []
    for supervisor in supervisors:
        if not supervisor["expired"]:
            wanted = {
                "supervisor": supervisor["id"],
                "name": "report",
                "arguments": "{}",
                "actor": actor(),
                "reason": None,
            }
            try:
                asked.append(at.row("control/send_fleet_command", wanted)["id"])
            except (errors.InvalidParameterValue, errors.ProgramLimitExceeded) as problem:
                if takes_no_writes(problem):
                    return False
                continue  # it has exited meanwhile, or has a hundred open fleet commands
            except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction):
                return False  # a read-only user sees the last reports
    until = time.monotonic() + FRESH
    for number in asked:
        _wait(partial(at.row, "control/show_fleet_command", {"order": number}), max(0.0, until - time.monotonic()))
    return bool(asked)


def _print(supervisor: dict[str, Any]) -> None:
    facts = json.loads(supervisor["facts"]) if supervisor["facts"] else {}
    if supervisor["expired"]:
        lease = paint(f"lease expired {show_span(supervisor['lease_left'])} ago", "red")
    else:
        lease = f"lease renewed {show_span(supervisor['beat_age'])} ago, good for {show_span(supervisor['lease_left'])}"
    name = paint(f"supervisor {supervisor['id']}", "bold")
    print(
        f"{name}  {plain(supervisor['host'])}/{supervisor['pid']}  {plain(supervisor['version'])}  up "
        f"{show_span(supervisor['up_for'])}"
    )
    if not facts:
        print(f"  {lease}; it has not reported its child processes yet")
        remote_workers.print_table(supervisor["sessions"])
        print()
        return
    run_state = facts.get("run_state", "?") + (", reloading" if facts.get("reloading") else "")
    print(
        f"  {lease}; {plain(run_state)}, {count(facts.get('wanted', 0), 'worker', 'workers')} wanted; as of "
        f"{show_span(supervisor['facts_age'])} ago"
    )
    children = facts.get("children", [])
    if children:
        colours = [{1: _STATES.get(child.get("state", ""), "")} for child in children]
        rows = [_row(child) for child in children]
        # With empty columns, a terminal of 80 columns has no room for what the workers do.
        shown = [
            place for place, column in enumerate(_COLUMNS) if column not in _SPARSE or any(row[place] for row in rows)
        ]
        console.print_table(
            [_COLUMNS[place] for place in shown], [[row[place] for place in shown] for row in rows], colours=colours
        )
    remote_workers.print_table(supervisor["sessions"])
    for end in facts.get("ends", []):
        print(
            paint(
                f"  {plain(end['name'])} ended {show_span(end['ago'] + (supervisor['facts_age'] or 0))} ago: "
                f"{plain(end['sentence'])}",
                "dim",
            )
        )
    print()


def _row(child: dict[str, Any]) -> tuple[object, ...]:
    state = child.get("state", "?")
    if child.get("waits_on"):
        state = f"waits for {child['waits_on']}"
    cpu, rss, jobs = child.get("cpu"), child.get("rss"), child.get("jobs")
    return (
        child.get("name", "?"), state, child.get("pid"),
        None if cpu is None else f"{100 * cpu:.0f}%", None if rss is None else size(rss),
        None if jobs is None else f"{jobs:,}", child.get("held") or None, child.get("restarts", 0), _work(child),
    )  # fmt: skip


def _work(child: dict[str, Any]) -> str:
    if child.get("state") == "resting" and child.get("last_end"):
        return f"for {show_span(child.get('left'))}: {child['last_end']['sentence']}"
    if not child.get("job_kind"):
        return ""
    number = child.get("job") or child.get("record")
    progress = child.get("progress") or {}
    far = f", {progress['fraction']:.0%}" if progress.get("fraction") is not None else ""
    return f"{child['job_kind']} #{number} for {show_span(child.get('elapsed'))}{far}"


COMMANDS: Final = (
    Command(
        "fleet",
        "list supervisors and child processes, or send a fleet command",
        '  jobherd fleet\n  jobherd fleet drain 7 --reason "the host is replaced"\n  jobherd fleet add 7',
        _arguments,
        _fleet,
        about="Without an action: show every supervisor and its child processes, on every host. With one, send a "
        "fleet command to those named:\n"
        "drain it (as TERM does), add a worker or remove one (TTIN, TTOU), reload code and settings (HUP). It goes "
        "through the database, so\n"
        "you can send it from any host to any host. A reload is answered when the first worker has loaded the new "
        "code, or has failed to. The exit code is 1 if\n"
        "a supervisor did not execute it.",
        lists=True,
        spans="each",
    ),
)
