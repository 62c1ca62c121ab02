"""`stack ID` and `profile ID`: inspect a running job on any host.

Both send a fleet command to the supervisor of the job.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, job_id, span
from jobherd.supervisor.cli.console import Column, paint, plain, show_span
from jobherd.supervisor.cli.database import session
from jobherd.workers.inspect.flamegraph import counts_of, folded, hottest, picture
from jobherd.workers.inspect.phrases import duration
from jobherd.workers.inspect.stacks import thread_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.cli.database import Session

PATIENCE: Final = 10.0
"""Seconds that a supervisor has to answer, in addition to the duration of the work itself."""
OFTEN: Final = 0.02
SELDOM: Final = 0.1
"""Seconds between two checks for the answer: `OFTEN` for a stack, `SELDOM` for a profile."""
_HOTTEST: Final = 10


# -- the fleet command


def _ask(at: Session, job: int, name: str, arguments: Mapping[str, object], *, takes: float = 0.0) -> dict[str, Any]:
    """Return the answer of the supervisor that runs a job. Raises CommandError.

    Args:
        at: the database session.
        job: the ID of the job.
        name: the fleet command.
        arguments: its arguments.
        takes: seconds that the work itself takes.
    """
    found = at.rows("observe/find_runner", {"id": job})
    if not found:
        raise CommandError(f"job {job} not found: it never existed, it was deleted, or its retention has ended")
    runner = found[0]
    if runner["state"] != "running":
        raise CommandError(f"job {job} is not running: it is {runner['state']} (jobherd why {job} explains it)")
    if runner["remote"] is not None:
        raise CommandError(
            f"job {job} runs on the remote worker {runner['remote']}, whose process cannot be inspected from here: on "
            f"its host, run a tool such as py-spy (under `jobherd work`, `pgrep -f '#{job}$'` finds the process)"
        )
    if runner["supervisor"] is None:
        raise CommandError(
            f"job {job} runs under a supervisor that cannot be reached: its lease has expired, and another "
            "supervisor will reclaim the job"
        )
    given = orjson.dumps({"job": job, "child": runner["child"], **arguments}).decode()
    wanted = {"supervisor": runner["supervisor"], "name": name, "arguments": given, "actor": actor(), "reason": None}
    order = at.row("control/send_fleet_command", wanted)["id"]
    until = time.monotonic() + takes + PATIENCE
    while time.monotonic() < until:
        answered = at.row("control/show_fleet_command", {"order": order})
        if answered["error"] is not None:
            raise CommandError(answered["error"])
        if answered["done_at"] is not None:
            return orjson.loads(answered["answer"].encode())  # type: ignore[no-any-return]
        time.sleep(SELDOM if takes else OFTEN)
    at.send("control/withdraw_fleet_command", {"order": order})
    raise CommandError(
        f"the supervisor on {runner['host']} did not answer within {duration(PATIENCE + takes)}: is it there? (jobherd "
        "status)"
    )


# -- stack


def _stack_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=job_id, metavar="ID", help="the id of a job that runs")


def _stack(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        answer = _ask(at, arguments.id, "stack", {})
    silent = answer.get("silent")
    if arguments.json:
        console.print_json(answer)
        return ExitCode.WRONG if silent else ExitCode.DONE
    name = paint(f"job {answer['job']}", "bold")
    print(f"{name}  {_where(answer)}, for {show_span(answer['runs_for'])}\n")
    for document in answer["threads"]:
        print(console.plain_lines(str(thread_of(document))) + "\n")
    console.print_table(_TASKS, [_task(task) for task in answer["tasks"]])
    if silent:
        console.complain(silent)
        return ExitCode.WRONG
    return ExitCode.DONE


_TASKS: Final = (
    Column("THREAD", right=True),
    Column("NAME"),
    Column("CPU TIME", right=True),
    Column("STATE", least=10),
)


def _task(task: Mapping[str, Any]) -> tuple[object, ...]:
    doing = task["state"] + (f" in {task['waits_in']}" if task["waits_in"] else "")
    return task["tid"], task["name"], show_span(task["processor"]), doing


def _where(answer: Mapping[str, Any]) -> str:
    return plain(f"{answer['kind']}  on {answer['host']}, worker {answer['worker']} (process {answer['pid']})")


# -- profile


def _profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=job_id, metavar="ID", help="the id of a job that runs")
    parser.add_argument(
        "--for", dest="seconds", type=span, default=10.0, metavar="TIME", help="how long, up to 5m (default 10s)"
    )
    parser.add_argument("--rate", type=_rate, default=50, metavar="N", help="stacks a second, 1 to 100 (default 50)")
    parser.add_argument(
        "--output", type=Path, metavar="NAME", help="write NAME.svg and NAME.folded (default profile-ID)"
    )


def _rate(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 1 <= int(text) <= 100:
        message = f"{text[:40]!r} is not a whole number from 1 to 100"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _profile(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.seconds <= 300:
        raise CommandError("--for must be more than 0 and at most 5m", ExitCode.USAGE)
    if not arguments.json:
        console.complain(f"looking at job {arguments.id} for {show_span(arguments.seconds)}")
    name = str(arguments.output or f"profile-{arguments.id}").removesuffix(".svg")
    with session(arguments) as at:
        answer = _ask(
            at, arguments.id, "profile", {"seconds": arguments.seconds, "rate": arguments.rate}, takes=arguments.seconds
        )
    counts = counts_of(answer)
    title = f"job {answer['job']}  {_where(answer)}"
    about = f"{answer['samples']} samples in {duration(answer['seconds'])}, {answer['rate']:g} a second"
    about += "" if answer["processor"] is None else f"; used {duration(answer['processor'])} of processor time"
    about += f"; {answer['missed']} could not be taken" if answer["missed"] else ""
    about += f"; it ended early: {answer['ended']}" if answer["ended"] else ""
    try:
        Path(f"{name}.svg").write_text(
            picture(counts, title=title, about=about, seconds=answer["seconds"]), encoding="utf-8"
        )
        Path(f"{name}.folded").write_text(folded(counts), encoding="utf-8")
    except OSError as problem:
        raise CommandError(f"--output: {name} cannot be written: {problem.strerror}") from None
    if arguments.json:
        console.print_json(answer | {"svg": f"{name}.svg", "folded": f"{name}.folded"})
        return ExitCode.DONE
    print(f"{paint(plain(title), 'bold')}\n{plain(about)}\n")
    rows = [
        (f"{share:.0%}", frame.function, f"{frame.file}:{frame.line}") for frame, share in hottest(counts, _HOTTEST)
    ]
    console.print_table((Column("OF ALL", right=True), Column("IN", least=10), Column("AT", least=20)), rows)
    print(f"\n{name}.svg     a flame graph, for a browser\n{name}.folded  the stacks, for other tools")
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "stack",
        "show where a running job is",
        "  jobherd stack 42",
        _stack_arguments,
        _stack,
        about="Show the Python stack of a running job, on whichever host it runs, also while it is in C code or "
        "stuck; all threads. The job\n"
        "continues. The exit code is 1 if it does not run, or its worker does not answer.",
        lists=True,
    ),
    Command(
        "profile",
        "draw a flame graph of a running job",
        "  jobherd profile 42 --for 10s",
        _profile_arguments,
        _profile,
        about="Sample the stack of a running job, and write a flame graph and folded stacks. It counts time and not\n"
        "processor time, so waiting shows too. It ends early if the job does.",
        lists=True,
    ),
)
