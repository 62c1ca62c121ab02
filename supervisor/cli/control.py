"""Telling jobs what to do: `retry` and `cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.cli import console
from supervisor.cli.actor import actor
from supervisor.cli.codes import ExitCode
from supervisor.cli.command import Command, add_job_ids, job_ids
from supervisor.cli.database import session

if TYPE_CHECKING:
    import argparse


def _retry(arguments: argparse.Namespace) -> int:
    return _tell(arguments, "retry_job_as", fine={"ready", "running"}, words={"running": "runs already", None: "there is no such job"})


def _cancel(arguments: argparse.Namespace) -> int:
    late: dict[str | None, str] = {state: f"too late: it is {state}" for state in ("completed", "failed", "expired")}
    return _tell(
        arguments,
        "cancel_job_as",
        fine={"cancelled", "cancelling"},
        words={**late, "cancelling": "cancelling: it runs and has been told", None: "there is no such job"},
    )


def _tell(arguments: argparse.Namespace, statement: str, *, fine: set[str], words: dict[str | None, str]) -> int:
    """Send a statement for each id; print what became of it. Every id is tried, whatever the ones before answered."""
    answers: list[tuple[int, str | None]] = []
    ids = job_ids(arguments.ids)
    with session(arguments) as at:
        for number in ids:
            answer = at.row(statement, {"id": number, "actor": actor(), "reason": arguments.reason})["answer"]
            answers.append((number, answer))
            if not arguments.json:
                said = words.get(answer, str(answer))
                print(f"{number} {said if answer in fine else console.paint(said, 'red')}", flush=True)
    if arguments.json:
        console.print_json([{"id": number, "answer": answer} for number, answer in answers])
    return ExitCode.DONE if all(answer in fine for _, answer in answers) else ExitCode.WRONG


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument("--reason", metavar="TEXT", help="why, for those who look at the audit")


COMMANDS: Final = (
    Command(
        "retry",
        "run jobs again, now",
        "  jobherd jobs --state failed --json | jq .[].id | jobherd retry -",
        _arguments,
        _retry,
        about="Run jobs again: at once if they wait for their time, from the start if they are over. A job keeps its id and its past.\n"
        "The exit code is 1 if one does not exist.",
        lists=True,
    ),
    Command(
        "cancel",
        "cancel jobs",
        "  jobherd cancel 42 43",
        _arguments,
        _cancel,
        about="Cancel jobs. One that waits is over at once; one that runs is told, and `jobherd wait` says when it has ended.\n"
        "The exit code is 1 if one was over already or does not exist.",
        lists=True,
    ),
)
