"""`signal`: sends a signal to a job, or to all jobs that wait for a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, job_id
from jobherd.supervisor.cli.database import session

if TYPE_CHECKING:
    import argparse


def _signal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic, or with --job the name that the job waits for")
    parser.add_argument("payload", nargs="?", metavar="JSON", help="what the job gets, any JSON value (default null)")
    parser.add_argument("--job", type=job_id, metavar="ID", help="send the signal to this job only")


def _signal(arguments: argparse.Namespace) -> int:
    try:
        payload = None if arguments.payload is None else check_payload(decode_payload(arguments.payload))
    except PayloadError as problem:
        raise CommandError(f"the payload is not a JSON value: {problem}", ExitCode.USAGE) from None
    with session(arguments) as at:
        if arguments.job is None:
            [row] = at.rows("control/send_signal", {"topic": arguments.name, "payload": payload})
        else:
            given = {"id": arguments.job, "name": arguments.name, "payload": payload}
            [row] = at.rows("control/send_job_signal", given)
    if row["id"] is None:
        raise CommandError(
            f"job {arguments.job} not found: it never existed, it was deleted, or its retention has ended"
        )
    print(row["id"])
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "signal",
        "send a signal to a job, or to the jobs that wait for a topic",
        """  jobherd signal approved '{"by": "ada"}' --job 42\n  jobherd signal order/7/packed""",
        _signal_arguments,
        _signal,
        about="Send a signal, and print its id. A job gets it by job.wait_for(NAME), also if it begins to wait later: "
        "signals are kept for 30 days. Without --job, NAME is a topic, and each job that waits for it gets the signal.",
    ),
)
