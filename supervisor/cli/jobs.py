"""`jobs`: lists jobs, newest first. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import LARGEST_ID, Command, job_id, row_limit
from jobherd.supervisor.cli.console import Column
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_text import STATES, document, reason_of, states, when
from jobherd.supervisor.cli.kinds import suggest_kind

if TYPE_CHECKING:
    import argparse

FARTHEST: Final = 50_000
"""Most rows of each table that a filtered listing reads.

Without it a listing could read 10 million jobs of the history.
"""


def _jobs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=states, action="extend", metavar="STATE", help=f"only these: {', '.join(STATES)}"
    )
    parser.add_argument("--kind", metavar="KIND", help="only jobs of this kind")
    parser.add_argument("--queue", metavar="QUEUE", help="only jobs of this queue")
    parser.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant")
    parser.add_argument("--code", metavar="CODE", help="only jobs whose last error has this code")
    parser.add_argument(
        "--limit", type=row_limit, default=50, metavar="N", help="how many at most, 1 to 10000 (default 50)"
    )
    parser.add_argument(
        "--before", type=job_id, default=LARGEST_ID, metavar="ID", help="the page after the one that ended with ID"
    )


def _jobs(arguments: argparse.Namespace) -> int:
    wanted = {name: getattr(arguments, name) for name in ("kind", "queue", "tenant", "code")} | {
        "states": arguments.state
    }
    filtered = any(value is not None for value in wanted.values())
    scan = max(FARTHEST, arguments.limit) if filtered else arguments.limit
    with session(arguments) as at:
        rows = at.rows(
            "observe/list_jobs", wanted | {"limit": arguments.limit, "before": arguments.before, "scan": scan}
        )
        floor, jobs = rows[0]["floor"], [row for row in rows if row["id"] is not None]
        whole = at.rows("observe/show_jobs", {"ids": [job["id"] for job in jobs]}) if arguments.json else []
        if not jobs:
            suggest_kind(at, arguments.kind)
    if arguments.json:
        console.print_json([document(row) for row in whole])
    elif jobs:
        console.print_table(
            _COLUMNS,
            [_line(job) for job in jobs],
            colours=[{1: console.STATE_COLOURS.get(job["state"], "")} for job in jobs],
        )
    if len(jobs) == arguments.limit:
        if not arguments.json:
            console.complain(f"there may be more: --before {jobs[-1]['id']}")
    elif filtered and floor:
        console.complain(f"searched back to job {floor}; continue with --before {floor}")
    elif not jobs and not arguments.json:
        console.complain("no jobs" + (" like that" if filtered or arguments.before != LARGEST_ID else ""))
    return ExitCode.DONE


_COLUMNS: Final = (
    Column("ID", right=True), Column("STATE"), Column("KIND", least=12), Column("QUEUE", least=7),
    Column("TRY", right=True),
    Column("WHEN", right=True), Column("NOTE", least=4),
)  # fmt: skip


def _line(job: dict[str, Any]) -> tuple[object, ...]:
    tries = f"{job['attempts']}/{job['max_attempts']}"
    return (job["id"], job["state"], job["kind"], job["queue"], tries, when(job), reason_of(job))


COMMANDS: Final = (
    Command(
        "jobs",
        "list jobs, newest first",
        "  jobherd jobs --state failed,retrying --kind mail:receipt",
        _jobs_arguments,
        _jobs,
        lists=True,
        spans="each",
    ),
)
