"""Defines the commands for periodic jobs: `schedules` and `schedule`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.cron import parse
from jobherd.handlers._policy.durations import seconds
from jobherd.handlers._policy.schedule import check_payload
from jobherd.handlers._policy.timing import Timing
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command
from jobherd.supervisor.cli.console import Column, show_moment
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.schedule_import import print_commands

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

_COLUMNS: Final = (
    Column("SCHEDULE"), Column("KIND", least=10), Column("TIMING", least=24), Column("NEXT"),
    Column("LAST"), Column("STATE", least=10),
)  # fmt: skip
_ACTIONS: Final = ("add", "edit", "pause", "resume", "run", "reset", "delete", "backfill", "next", "import")
_OPTIONS: Final = (
    "queue", "priority", "misfire", "misfire_most", "misfire_within", "overlap", "jitter", "starts_at", "ends_at",
    "good_for", "pause_after",
)  # fmt: skip
_SPANS: Final = frozenset({"misfire_within", "jitter", "good_for"})


def print_schedules(schedules: Sequence[dict[str, Any]]) -> None:
    """Print the table of schedules."""
    rows = [
        (
            one["name"], one["kind"], timing_of(one), show_moment(None if is_still(one) else one["next_at"]),
            show_moment(one["last_at"]), state_of(one),
        )
        for one in schedules
    ]  # fmt: skip
    colours = [{5: "red" if one["error"] else "yellow"} for one in schedules]
    console.print_table(_COLUMNS, rows, colours=colours)


def timing_of(schedule: dict[str, Any]) -> str:
    """Return when a schedule runs, in a few words."""
    if schedule["cron"] is None:
        return f"every {console.show_span(schedule['every'])}"
    return str(schedule["cron"]) + ("" if schedule["tz"] == "UTC" else f" {schedule['tz']}")


def is_still(schedule: dict[str, Any]) -> bool:
    """Return whether a schedule makes no jobs now: it has an error, is retired or is paused."""
    return any(schedule[name] for name in ("error", "retired_at", "paused_at"))


def state_of(schedule: dict[str, Any]) -> str:
    """Return what is unusual about a schedule, in a few words."""
    if schedule["error"]:
        return f"error: {schedule['error']}"
    if schedule["retired_at"]:
        return "retired"
    if schedule["paused_at"]:
        until = f", until {show_moment(schedule['resume_at'])}" if schedule["resume_at"] else ""
        reason = f": {schedule['pause_reason']}" if schedule["pause_reason"] else ""
        return f"paused by {schedule['paused_by']}{until}{reason}"
    return f"edited by {schedule['edited_by']}" if schedule["edited_by"] and schedule["declared"] else ""


def _schedules(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        schedules = at.rows("schedule/list_schedules")
    if arguments.json:
        console.print_json(schedules)
    elif schedules:
        print_schedules(schedules)
    else:
        console.complain('there are no schedules: declare one with @handler(every="15m"), or jobherd schedule add')
    return ExitCode.DONE


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=_ACTIONS, help=f"one of {', '.join(_ACTIONS)}")
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the schedule; for next also a cron expression")
    parser.add_argument("--kind", metavar="KIND", help="add, edit: kind of the jobs")
    parser.add_argument("--cron", metavar="FIELDS", help='add, edit: five fields, such as "0 3 * * MON-FRI"')
    parser.add_argument("--every", metavar="TIME", help='add, edit: period instead, such as "15m"')
    parser.add_argument("--tz", metavar="ZONE", help="add, edit, next: time zone, such as Europe/Berlin")
    parser.add_argument("--payload", metavar="JSON", help="add, edit: payload of the jobs, a JSON object")
    for option in _OPTIONS:
        parser.add_argument(f"--{option.replace('_', '-')}", metavar="VALUE", help=_HELP[option])
    parser.add_argument(
        "--for", metavar="TIME", dest="span", help='pause: resume automatically after this time, such as "30m"'
    )
    parser.add_argument("--until", metavar="TIMESTAMP", help="pause: resume automatically at this time")
    parser.add_argument("--from", metavar="TIMESTAMP", dest="from_at", help="backfill: the first instant")
    parser.add_argument("--to", metavar="TIMESTAMP", dest="to_at", help="backfill: the last instant")
    parser.add_argument("--parallel", metavar="N", type=int, default=1, help="backfill: most jobs at a time; default 1")
    parser.add_argument("-n", metavar="N", type=int, default=10, help="next: how many instants; default 10")
    parser.add_argument("--celery", metavar="MODULE", help="import: module of the Celery application")
    parser.add_argument("--reason", metavar="TEXT", help="reason, for the audit log")


_HELP: Final = {
    "queue": "add, edit: queue of the jobs",
    "priority": "add, edit: priority of the jobs",
    "misfire": "add, edit: after an outage: skip, one or all",
    "misfire_most": "add, edit: most instants that run with --misfire all",
    "misfire_within": "add, edit: how old they may be",
    "overlap": "add, edit: if the earlier job has not finished: allow, skip, queue or replace",
    "jitter": "add, edit: jobs are due up to this much later",
    "starts_at": "add, edit: no instant is earlier than this time",
    "ends_at": "add, edit: no instant is later than this time",
    "good_for": "add, edit: a job that has not started this long after its instant expires",
    "pause_after": "add, edit: number of failed runs in a row that pauses the schedule",
}


def _schedule(arguments: argparse.Namespace) -> int:
    if arguments.name is None and arguments.action != "import":
        raise CommandError("NAME is missing. See `jobherd schedule --help`", ExitCode.USAGE)
    return _RUN[arguments.action](arguments)


def _store(arguments: argparse.Namespace) -> int:
    payload = None
    try:
        if arguments.payload is not None:
            payload = json.dumps(check_payload(_json(arguments.payload), field="--payload"))
        # The database checks the rest, but it has neither a parser of expressions nor this host's zones.
        if arguments.cron is not None:
            parse(arguments.cron)
        if arguments.tz is not None:
            _ = Timing(tz=arguments.tz).zone
        every = None if arguments.every is None else str(seconds(arguments.every, field="--every"))
        options = {
            name: str(seconds(given, field=f"--{name}")) if name in _SPANS else given
            for name in _OPTIONS
            if (given := getattr(arguments, name)) is not None
        }
    except (TypeError, ValueError) as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
    wanted = {
        **_common(arguments), "kind": arguments.kind, "cron": arguments.cron, "every": every,
        "tz": arguments.tz, "payload": payload, "options": json.dumps(options),
        "adds": arguments.action == "add",
    }  # fmt: skip
    with session(arguments) as at:
        became = at.row("schedule/store_schedule", wanted)["became"]
    if became is None:
        there = "exists already; to change it: jobherd schedule edit" if arguments.action == "add" else "does not exist"
        raise CommandError(f"schedule {arguments.name} {there}", ExitCode.WRONG)
    print(f"schedule {arguments.name} is {became}")
    return ExitCode.DONE


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as problem:
        message = f"--payload is not JSON: {problem}"
        raise ValueError(message) from None


def _common(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"name": arguments.name, "actor": actor(), "reason": arguments.reason}


def _pause(arguments: argparse.Namespace) -> int:
    if arguments.span and arguments.until:
        raise CommandError("--for and --until exclude each other: give one of them", ExitCode.USAGE)
    try:
        arguments.delay = seconds(arguments.span, field="--for") if arguments.span else None
    except ValueError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
    return _change("schedule/pause_schedule", "until", "delay", says="is paused")(arguments)


def _change(statement: str, *more: str, says: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        with session(arguments) as at:
            row = at.row(statement, _common(arguments) | {name: getattr(arguments, name) for name in more})
        if row["changed"] is False:
            raise CommandError(f"schedule {arguments.name} does not exist or was not paused", ExitCode.WRONG)
        print(f"schedule {arguments.name} {says}")
        return ExitCode.DONE

    return run


def _next(arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    timing = Timing(cron=arguments.name, tz=arguments.tz or "UTC")
    if " " not in arguments.name and not arguments.name.startswith("@"):
        with session(arguments) as at:
            found = [one for one in at.rows("schedule/list_schedules") if one["name"] == arguments.name]
        if not found:
            raise CommandError(f"schedule {arguments.name} does not exist", ExitCode.WRONG)
        [one] = found
        options = json.loads(one["options"])
        limits = [options.get(name) for name in ("starts_at", "ends_at")]
        timing = Timing(
            one["cron"],
            one["every"],
            arguments.tz or one["tz"],
            *(limit and datetime.fromisoformat(limit) for limit in limits),
        )
    try:
        instants = [instant.astimezone(timing.zone) for instant in islice(timing.after(now), max(1, arguments.n))]
    except ValueError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
    before = now.astimezone(timing.zone).utcoffset()
    for instant in instants:
        changed = "" if instant.utcoffset() == before else "   the clock has changed"
        before = instant.utcoffset()
        print(f"{instant:%a %Y-%m-%d %H:%M:%S %z}{changed}")
    return ExitCode.DONE


def _import(arguments: argparse.Namespace) -> int:
    if arguments.celery is None:
        message = "import reads a Celery application: jobherd schedule import --celery proj.celery"
        raise CommandError(message, ExitCode.USAGE)
    return print_commands(arguments.celery)


_RUN: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "add": _store,
    "edit": _store,
    "pause": _pause,
    "resume": _change("schedule/resume_schedule", says="is resumed"),
    "run": _change("schedule/run_schedule", says="runs now"),
    "reset": _change("schedule/reset_schedule", says="is as its handler declares it"),
    "delete": _change("schedule/unschedule", says="is deleted"),
    "backfill": _change(
        "schedule/backfill_schedule", "from_at", "to_at", "parallel", says="runs its instants that have no job"
    ),
    "next": _next,
    "import": _import,
}


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


COMMANDS: Final = (
    Command(
        "schedules",
        "list the schedules of periodic jobs",
        "  jobherd schedules --json",
        _nothing,
        _schedules,
        lists=True,
        spans="each",
    ),
    Command(
        "schedule",
        "add, edit, pause, run or delete a schedule",
        '  jobherd schedule add feed-eu --kind feed:poll --every 15m --payload \'{"region": "eu"}\'\n'
        '  jobherd schedule pause feed-eu --reason "the source is down"\n  jobherd schedule run feed-eu\n'
        "  jobherd schedule next '30 2 * * *' --tz Europe/Berlin -n 5\n"
        "  jobherd schedule import --celery proj.celery",
        _arguments,
        _schedule,
        about="Add or edit a schedule of periodic jobs, pause or resume it, run it now, return it to what its handler "
        "declares, delete it, or run past instants that have no job. With next, print the next instants of a "
        "schedule or of a cron expression. With import, print the commands that add what Celery beat runs.",
    ),
)
