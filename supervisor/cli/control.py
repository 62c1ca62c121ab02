"""Defines the commands that change jobs: `retry`, `cancel`, `delete`, `reprioritize`, `reschedule`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import Command, add_job_ids, job_ids, moment, span, whole
from jobherd.supervisor.cli.database import session

if TYPE_CHECKING:
    import argparse

_LATE: Final[dict[str | None, str]] = {
    None: "not found", "running": "too late: it runs",
    **{state: f"too late: it is {state}" for state in FINAL_STATES},
}  # fmt: skip
_WAITS: Final = {"ready", "scheduled", "retrying", "blocked"}


def _retry(arguments: argparse.Namespace) -> int:
    return _tell(
        arguments,
        "control/retry_job",
        fine={"ready", "running"},
        words={
            "running": "runs already",
            "blocked": "not run: it waits for other jobs (jobherd why shows which)",
            "conflict": "not run again: another live job holds its key",
            None: "not found",
        },
    )


def _cancel(arguments: argparse.Namespace) -> int:
    late: dict[str | None, str] = {state: f"too late: it is {state}" for state in ("completed", "failed", "expired")}
    return _tell(
        arguments,
        "control/cancel_job",
        fine={"cancelled", "cancelling"},
        words={**late, "cancelling": "cancelling: it runs and is being interrupted", None: "not found"},
    )


def _delete(arguments: argparse.Namespace) -> int:
    waits: dict[str | None, str] = dict.fromkeys(_WAITS, "not deleted: it waits; cancel it first")
    words = {**waits, "running": "not deleted: it runs; cancel it first", None: "not found"}
    return _tell(arguments, "control/delete_job", fine={"deleted"}, words=words)


def _reprioritize(arguments: argparse.Namespace) -> int:
    return _tell(arguments, "control/reprioritize_job", fine=_WAITS, words=_LATE, priority=arguments.priority)


def _reschedule(arguments: argparse.Namespace) -> int:
    return _tell(
        arguments, "control/reschedule_job", fine=_WAITS, words=_LATE, run_at=arguments.at, delay=arguments.delay
    )


def _tell(
    arguments: argparse.Namespace, statement: str, *, fine: set[str], words: dict[str | None, str], **more: Any
) -> int:
    """Run a statement for each ID and print its result. A failed ID does not stop the others."""
    answers: list[tuple[int, str | None]] = []
    ids = job_ids(arguments.ids)
    with session(arguments) as at:
        for number in ids:
            answer = at.row(statement, {"id": number, "actor": actor(), "reason": arguments.reason, **more})["answer"]
            answers.append((number, answer))
            if not arguments.json:
                said = words.get(answer, str(answer))
                print(f"{number} {said if answer in fine else console.paint(said, 'red')}", flush=True)
    if arguments.json:
        console.print_json([{"id": number, "answer": answer} for number, answer in answers])
    return ExitCode.DONE if all(answer in fine for _, answer in answers) else ExitCode.WRONG


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument("--reason", metavar="TEXT", help="reason, for the audit log")


def _reprioritize_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument(
        "--priority", type=whole, required=True, metavar="N", help="from -32768 to 32767: the lower, the sooner"
    )


def _reschedule_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    due = parser.add_mutually_exclusive_group(required=True)
    due.add_argument("--delay", type=span, metavar="TIME", help='duration from now, such as "10m"')
    due.add_argument("--at", type=moment, metavar="WHEN", help="at this time, such as 2030-01-31T08:00:00+01:00")
    due.add_argument("--now", dest="delay", action="store_const", const=0.0, help="at once")


COMMANDS: Final = (
    Command(
        "retry",
        "run jobs again, now",
        "  jobherd jobs --state failed --json | jq '.[].id' | jobherd retry -",
        _arguments,
        _retry,
        about="Run jobs again: scheduled and retrying jobs now, finished jobs from the start. A job keeps its id "
        "and its history.\n"
        "The exit code is 1 if one does not exist, or if another live job holds the key of a unique job.",
        lists=True,
        spans="ids",
    ),
    Command(
        "cancel",
        "cancel jobs",
        "  jobherd cancel 42 43",
        _arguments,
        _cancel,
        about="Cancel jobs. A waiting job is canceled at once. A running job is interrupted; `jobherd wait` reports "
        "when it has ended.\n"
        "The exit code is 1 if a job had finished already or does not exist.",
        lists=True,
        spans="ids",
    ),
    Command(
        "delete",
        "delete finished jobs",
        "  jobherd delete 42 43 --reason 'held a secret'",
        _arguments,
        _delete,
        about="Delete finished jobs, with their attempts and logs. `jobherd purge` deletes many by their age.\n"
        "The exit code is 1 if a job is waiting or running, or does not exist.",
        lists=True,
        spans="ids",
    ),
    Command(
        "reprioritize",
        "give waiting jobs another priority",
        "  jobherd reprioritize 42 43 --priority -5",
        _reprioritize_arguments,
        _reprioritize,
        about="Give waiting jobs another priority. The exit code is 1 if a job is not waiting any more or does not "
        "exist.",
        lists=True,
        spans="ids",
    ),
    Command(
        "reschedule",
        "reschedule waiting jobs",
        "  jobherd reschedule 42 --delay 10m",
        _reschedule_arguments,
        _reschedule,
        about="Reschedule waiting jobs. The exit code is 1 if a job is not waiting any more or does not exist.",
        lists=True,
        spans="ids",
    ),
)
