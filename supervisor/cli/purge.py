"""`purge`: deletes finished jobs before their retention time ends. Never changes live tables."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

import orjson

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, span
from jobherd.supervisor.cli.database import session

if TYPE_CHECKING:
    from jobherd.supervisor.cli.database import Session

BATCH: Final = 1000
"""Jobs examined by one statement.

More would hold locks and grow the WAL for longer than other sessions should wait.
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        type=_states,
        action="extend",
        required=True,
        metavar="STATE",
        help=f"which: {', '.join(FINAL_STATES)}, or all",
    )
    parser.add_argument(
        "--older-than", type=span, required=True, metavar="TIME", help="only jobs that ended longer ago than this"
    )
    parser.add_argument("--kind", metavar="KIND", help="only jobs of this kind")
    parser.add_argument("--dry-run", action="store_true", help="count, delete nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _states(text: str) -> list[str]:
    names = [word.strip() for word in text.split(",") if word.strip()]
    if names == ["all"]:
        return list(FINAL_STATES)
    for name in names:
        if name not in FINAL_STATES:
            message = f"{name[:40]!r} is not a final state: one of {', '.join(FINAL_STATES)}, or all"
            raise argparse.ArgumentTypeError(message)
    return names


def _purge(arguments: argparse.Namespace) -> int:
    wanted = {"states": arguments.state, "kind": arguments.kind}
    with session(arguments) as at:
        rows = at.rows("control/count_purgeable", wanted | {"older": arguments.older_than})
        counts = {row["state"]: row["jobs"] for row in rows if row["state"]}
        total = sum(counts.values())
        deleted = 0
        if total and not arguments.dry_run:
            _ask(arguments, counts)
            target = {
                "states": arguments.state,
                "kind": arguments.kind,
                "ended_by": rows[0]["cutoff"].isoformat(),
                "counted": total,
            }
            deleted = _delete(at, wanted | {"cutoff": rows[0]["cutoff"], "most": BATCH}, total, target)
    if arguments.json:
        console.print_json({"counted": counts, "deleted": deleted, "dry_run": arguments.dry_run})
    elif arguments.dry_run or not total:
        print(f"{_jobs(total)} to delete" + _by_state(counts))
    else:
        print(f"{_jobs(deleted)} deleted" + _by_state(counts))
    return ExitCode.DONE


def _ask(arguments: argparse.Namespace, counts: dict[str, int]) -> None:
    what = _jobs(sum(counts.values())) + _by_state(counts)
    if arguments.yes:
        console.complain(f"deleting {what}")
    elif sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(f"would delete {what}: add --yes to do it, or --dry-run to count only", ExitCode.USAGE)
    else:
        print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError("nothing deleted")


def _delete(at: Session, wanted: dict[str, object], total: int, target: dict[str, object]) -> int:
    deleted = 0
    after: object = 0
    while True:
        with at.connection.transaction():
            if not after:  # in the first batch: every purge that has deleted jobs gets an audit entry
                at.row(
                    "control/write_audit_entry",
                    {"actor": actor(), "action": "purge", "target": orjson.dumps(target).decode(), "reason": None},
                )
            row = at.row("control/purge_history", wanted | {"after": after})
        deleted += int(row["jobs"])
        if sys.stderr.isatty():
            print(f"\r{deleted:,} of {total:,}", end="", file=sys.stderr, flush=True)
        if row["reached"] is None:
            if sys.stderr.isatty():
                print(file=sys.stderr)
            return deleted
        after = row["reached"]


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


def _by_state(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {state}' for state, count in sorted(counts.items()))})" if counts else ""


COMMANDS: Final = (
    Command(
        "purge",
        "delete finished jobs before their retention ends",
        "  jobherd purge --state failed --older-than 30d --dry-run",
        _arguments,
        _purge,
        about="Delete finished jobs, with their attempts, in batches of 1,000. Otherwise Jobherd deletes them after "
        "the\n"
        "retention of their kind (7 days for completed jobs, 30 for the rest).",
        lists=True,
    ),
)
