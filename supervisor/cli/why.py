"""`why ID`: explains on one screen why a job is in its state, and how it got there.

The sentences come from `jobherd.workers.inspect.explain`.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, job_id
from jobherd.supervisor.cli.console import cut, paint, plain, show_moment
from jobherd.supervisor.cli.database import session
from jobherd.workers.inspect import explain as reasons

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

_LINES: Final = 12
"""Most attempts that are shown; one screen has 24 lines."""
_LONGEST: Final = 600
"""Characters of a sentence: an error may have 40,000, and `jobherd job` shows all of them."""
_PARSED: Final = ("gates", "history", "progress", "waits_for")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=job_id, metavar="ID", help="the job's id")


def _why(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        rows = at.rows("observe/explain_job", {"id": arguments.id, "most": reasons.MOST})
    if not rows:
        raise CommandError(
            f"job {arguments.id} not found: it never existed, it was deleted, or its retention has ended"
        )
    job = rows[0] | {name: _parsed(rows[0][name]) for name in _PARSED}
    explanation = reasons.explain(job, job["history"] or [], _clock(job["asked_at"]))
    if arguments.json:
        console.print_json(
            {
                "id": job["id"],
                "state": job["state"],
                "now": explanation.now,
                "before": explanation.before,
                "remedy": explanation.remedy,
            }
        )
        return ExitCode.DONE
    state = paint(job["state"], console.STATE_COLOURS.get(job["state"], ""))
    name = paint(f"job {job['id']}", "bold")
    print(f"{name}  {plain(job['kind'])}  {state}  queue {plain(job['queue'])}, priority {job['priority']}\n")
    for sentence in explanation.now:
        _print(sentence)
    before = explanation.before
    if before:
        print()
        if len(before) > _LINES:
            print(paint(f"... {len(before) - _LINES} attempts before", "dim"))
        for sentence in before[-_LINES:]:
            _print(sentence, "dim")
    if explanation.remedy:
        print()
        for sentence in explanation.remedy:
            _print(sentence)
    return ExitCode.DONE


def _print(sentence: str, colour: str = "") -> None:
    for line in textwrap.wrap(cut(plain(sentence), _LONGEST), console.width(), subsequent_indent="  ") or [""]:
        print(paint(line, colour))


def _clock(now: datetime) -> Any:
    """Return a function that formats a timestamp, without the date if it is today's."""
    today = now.astimezone().date()

    def show(moment: datetime) -> str:
        here = moment.astimezone()
        return here.strftime("%H:%M:%S") if here.date() == today else show_moment(moment)

    return show


def _parsed(value: object) -> Any:
    """Return a JSON document as Python values; None if Python cannot represent it.

    The other facts about the job can still be shown then.
    """
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value.encode())
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None


COMMANDS: Final = (
    Command(
        "why",
        "explain why a job is in its state",
        "  jobherd why 42",
        _arguments,
        _why,
        about="Explain why a job waits, runs, failed or has finished: pauses, concurrency limits, available "
        "workers, what its attempts\n"
        "ended with, and what to do.",
        lists=True,
        spans="ids",
    ),
)
