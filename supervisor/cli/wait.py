"""`wait ID`: waits until jobs have finished, by notification. It changes nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, add_job_ids, job_ids, span
from jobherd.supervisor.cli.console import paint, plain
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_text import reason_of

if TYPE_CHECKING:
    import argparse

    from jobherd.supervisor.cli.database import Session

NOWHERE: Final[dict[str, Any]] = {"state": "unknown", "error_code": None, "error": None}
"""The values shown for a job that does not exist."""
SILENCE: Final = 5.0
"""Seconds within which the database must answer during `wait`: its statements find jobs by ID."""
BACKSTOP = 1.0
"""Seconds after which `wait` queries without a notification; also the pause between reconnects."""


def _wait_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument(
        "--timeout", type=span, metavar="TIME", help="give up after this, with exit code 124 (default: never)"
    )


def _wait(arguments: argparse.Namespace) -> int:
    from jobherd.handlers._enqueue.answer_deadline import answered  # noqa: PLC0415  # only `wait` needs it

    ids = job_ids(arguments.ids)
    until = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    found: dict[int, dict[str, Any]] = {}
    printed: set[int] = set()
    away = False
    while True:
        try:
            with session(arguments) as at:
                away = False
                with answered(at.connection, _within(until)):
                    if not (over := _query(at, ids, found, printed, {}, quiet=arguments.json)):
                        # Otherwise a shared backend would listen.
                        if at.row("session/show_backend")["backend"] == at.connection.info.backend_pid:
                            # In this order: see sql/schema/05_wake.sql.
                            for name in ("wake/listen_finished", "wake/announce_wait", "wake/wait_for_settlements"):
                                at.send(name, {"ids": ids})
                        over = _query(at, ids, found, printed, {}, quiet=arguments.json)
                while not over:
                    left = BACKSTOP if until is None else until - time.monotonic()
                    if left <= 0:
                        return _waited(arguments, ids, found, timed_out=True)
                    notified = _await_notification(
                        at,
                        {number for number in ids if found[number]["state"] not in FINAL_STATES},
                        min(left, BACKSTOP),
                    )
                    with answered(at.connection, _within(until)):
                        over = _query(at, ids, found, printed, notified, quiet=arguments.json)
                return _waited(arguments, ids, found, timed_out=False)
        except CommandError as problem:
            # Once the database has answered, an outage does not end the command: it keeps waiting.
            if (
                problem.code is not ExitCode.NO_DATABASE
                or not found
                or (until is not None and time.monotonic() >= until)
            ):
                raise
            if not away:
                console.complain(f"{problem}; waiting for it")
            away = True
            time.sleep(BACKSTOP)


def _within(until: float | None) -> float:
    """Return the seconds within which the database must answer the next statement."""
    return SILENCE if until is None else min(SILENCE, max(0.0, until - time.monotonic()) + BACKSTOP)


def _await_notification(at: Session, ids: set[int], seconds: float) -> dict[int, str]:
    """Wait until the database notifies that one of these jobs has finished, at most `seconds`.

    Return the states in the notifications.
    """
    from jobherd.handlers._enqueue.waiting import ends  # noqa: PLC0415  # only `wait` needs it

    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        notified: dict[int, str] = {}
        for note in at.connection.notifies(timeout=left, stop_after=1):
            notified |= ends(note.payload, at.schema)
        if notified := {number: state for number, state in notified.items() if number in ids}:
            return notified
    return {}


def _query(
    at: Session,
    ids: list[int],
    found: dict[int, dict[str, Any]],
    printed: set[int],
    notified: dict[int, str],
    *,
    quiet: bool,
) -> bool:
    """Query once, print the jobs that have finished since, and return whether all have.

    Args:
        at: the database session.
        ids: all jobs to wait for.
        found: the last known row of each; updated.
        printed: jobs that were printed already; updated.
        notified: states of finished jobs from notifications, also if no row of the job is kept.
        quiet: print nothing.
    """
    rest = [number for number in ids if found.get(number, NOWHERE)["state"] not in FINAL_STATES]
    seen = {row["id"]: row for row in at.rows("observe/list_states", {"ids": rest})}
    for number in rest:
        found[number] = seen.get(number) or NOWHERE | ({"state": notified[number]} if number in notified else {})
        if found[number]["state"] in FINAL_STATES and not quiet and number not in printed:
            printed.add(number)
            print(_ended(number, found[number]), flush=True)
    return all(found[number]["state"] in {*FINAL_STATES, "unknown"} for number in ids)


def _ended(number: int, job: dict[str, Any]) -> str:
    """Return the line that shows how a job ended: ID, state, and the error of a failed job.

    The error is cut to the width of the terminal.
    """
    said = f"{number} {job['state']}"
    why = reason_of(job) if job["state"] == "failed" else ""
    text = f"  {console.cut(plain(why), max(0, console.line_limit() - len(said) - 2))}" if why else ""
    return f"{number} {paint(job['state'], console.STATE_COLOURS[job['state']])}{text}"


def _waited(arguments: argparse.Namespace, ids: list[int], found: dict[int, dict[str, Any]], *, timed_out: bool) -> int:
    if arguments.json:
        console.print_json([{"id": number, **{name: found[number][name] for name in NOWHERE}} for number in ids])
    missing = [str(number) for number in ids if found[number]["state"] == "unknown"]
    if missing:
        console.complain(
            f"job {', '.join(missing)} not found: it never existed, it was deleted, or its retention has ended"
        )
    open_ones = [str(number) for number in ids if found[number]["state"] not in {*FINAL_STATES, "unknown"}]
    if timed_out:
        console.complain(f"not finished: {', '.join(open_ones)}")
        return ExitCode.TIMEOUT
    return ExitCode.DONE if all(found[number]["state"] == "completed" for number in ids) else ExitCode.WRONG


COMMANDS: Final = (
    Command(
        "wait",
        "wait until jobs have finished",
        "  jobherd wait $(jobherd enqueue mail:receipt '{\"order_id\": 7}') --timeout 1m",
        _wait_arguments,
        _wait,
        about="Wait until jobs have finished, and print how each ended. The exit code is 0 if all completed, 1 if one\n"
        "failed, was cancelled, expired or does not exist, and 124 when the time was up.",
        lists=True,
        spans="ids",
    ),
)
