"""Defines `limit` and `limits`, for queues, kinds and partitions. Fair turns are in `fairness.py`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.rates import check_burst, check_rate, check_refill
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command
from jobherd.supervisor.cli.console import Column, show_span
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.kinds import suggest_kind
from jobherd.supervisor.cli.queues import called, gate_of, is_ruled, show_partitions

if TYPE_CHECKING:
    from jobherd.supervisor.cli.database import Session

_COLUMNS: Final = (
    Column("LIMIT"), Column("NAME", least=12), Column("RUNNING", right=True), Column("RATE", right=True),
    Column("BURST", right=True), Column("TOKENS", right=True), Column("NEXT", right=True), Column("PARTITIONS"),
    Column("SET BY", least=8),
)  # fmt: skip


def _limit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="QUEUE", nargs="?", help="a queue")
    parser.add_argument(
        "limit",
        metavar="N|RATE",
        nargs="?",
        help="how many of its jobs may run at a time, such as 10, or start in a time, such as 100/min, over all "
        "hosts; off removes all limits",
    )
    parser.add_argument("--kind", metavar="KIND", help="jobs of this kind instead, whatever their queue")
    parser.add_argument("--rate", help=argparse.SUPPRESS)
    parser.add_argument(
        "--burst",
        metavar="N",
        type=int,
        help="jobs that a rate lets start at once after a time without any; default: what comes in 50 ms, at least 1",
    )

    parser.add_argument(
        "--each",
        metavar="N",
        help="how many jobs of each partition of the queue may run at a time, over all hosts; off removes that limit",
    )
    parser.add_argument(
        "--each-rate",
        metavar="RATE",
        help="how many jobs of each partition of the queue may start in a time, such as 10/s, over all hosts; off "
        "removes that limit",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with --each 1: run the jobs of a partition in order, and none while an earlier one waits for a retry",
    )


def _limit(arguments: argparse.Namespace) -> int:
    if arguments.rate is not None:
        raise CommandError("a rate is written without --rate: `jobherd limit mail 100/min`", ExitCode.USAGE)
    if arguments.each is not None or arguments.each_rate is not None:
        return _limit_each(arguments)
    if arguments.strict:
        raise CommandError("--strict requires --each 1", ExitCode.USAGE)
    if arguments.kind is not None and arguments.limit is None:
        arguments.what, arguments.limit = None, arguments.what
    arguments.queue, limit = arguments.what, arguments.limit
    if limit is None:
        raise CommandError(
            'give a number of running jobs, a rate, or "off": `jobherd limit media 10`, `jobherd limit mail 100/min`',
            ExitCode.USAGE,
        )
    rated = "/" in limit
    _check(limit, arguments.burst, rated=rated)
    gate = gate_of(arguments) | {"actor": actor()}
    with session(arguments) as at:
        if rated:
            said = [_set_rate(at, gate, limit, arguments.burst)]
        elif limit == "off":
            said = _remove(at, gate)
        else:
            said = [_set_most(at, gate, int(limit))]
        suggest_kind(at, arguments.kind)
    for sentence in said:
        print(f"{called(arguments)} {sentence}")
    return ExitCode.DONE


def _check(limit: str, burst: int | None, *, rated: bool) -> None:
    """Raise CommandError unless the limit can be set."""
    if not rated and limit != "off" and not (limit.isdecimal() and len(limit) < 10 and int(limit)):
        raise CommandError(
            f"{limit!r} is neither a number from 1, nor a rate such as 100/min, nor off; to let nothing run, pause it",
            ExitCode.USAGE,
        )
    try:
        if burst is not None:
            check_burst(burst, field="--burst")
        check_refill(check_rate(limit, field="the rate") if rated else None, burst)
    except ValueError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None


def _limit_each(arguments: argparse.Namespace) -> int:
    each, rate, burst = arguments.each, arguments.each_rate, arguments.burst
    if arguments.what is None or arguments.limit is not None or arguments.kind is not None:
        given = "--each 2" if each is not None else "--each-rate 10/s"
        raise CommandError(
            f"{given.partition(' ')[0]} takes a queue and no other limit: `jobherd limit crm {given}`", ExitCode.USAGE
        )
    if each is not None and each != "off" and not (each.isdecimal() and len(each) < 10 and int(each)):
        raise CommandError(f"--each must be a number from 1, or off, not {each!r}", ExitCode.USAGE)
    if arguments.strict and each != "1":
        raise CommandError("--strict requires --each 1: jobs that run at a time have no order", ExitCode.USAGE)
    rated = rate is not None and rate != "off"
    _check(rate if rated else "off", burst, rated=rated)
    with session(arguments) as at:
        said = [] if each is None else [_set_each(at, arguments.what, each, strict=arguments.strict)]
        said += [] if rate is None else [_set_each_rate(at, arguments.what, rate if rated else None, burst)]
    for sentence in said:
        print(f"{arguments.what} {sentence}")
    return ExitCode.DONE


def _set_each(at: Session, queue: str, each: str, *, strict: bool = False) -> str:
    asked = {"queue": queue, "max_running": None if each == "off" else int(each), "strict": strict, "actor": actor()}
    before = at.row("control/limit_each", asked)["before"]
    was = "there was none" if before is None else f"it was {before}"
    if each == "off":
        return f"has no limit of each partition; {was}"
    return f"runs at most {each} of each partition at a time{', in strict order' if strict else ''}; {was}"


def _set_each_rate(at: Session, queue: str, rate: str | None, burst: int | None) -> str:
    asked = {"queue": queue, "rate": rate, "burst": burst, "actor": actor()}
    before = at.row("control/limit_each_rate", asked)["before"]
    was = "there was none" if before is None else f"it was {before}"
    if rate is None:
        return f"has no rate limit of each partition; {was}"
    return f"starts at most {rate} of each partition; {was}"


def _set_most(at: Session, gate: dict[str, Any], most: int) -> str:
    before = at.row("control/set_limit", gate | {"max_running": most})["before"]
    was = "there was no concurrency limit" if before is None else f"it was {before}"
    return f"runs at most {most} at a time; {was}"


def _set_rate(at: Session, gate: dict[str, Any], rate: str, burst: int | None) -> str:
    before = at.row("control/set_rate", gate | {"rate": rate, "burst": burst})["before"]
    return f"starts at most {rate}; " + ("there was no rate limit" if before is None else f"it was {before}")


def _remove(at: Session, gate: dict[str, Any]) -> list[str]:
    most = at.row("control/set_limit", gate | {"max_running": None})["before"]
    rate = at.row("control/set_rate", gate | {"rate": None, "burst": None})["before"]
    said = [] if rate is None else [f"has no rate limit; it was {rate}"]
    if gate["queue"] is not None:
        each = [_set_each(at, gate["queue"], "off"), _set_each_rate(at, gate["queue"], None, None)]
        said += [sentence for sentence in each if not sentence.endswith("none")]
    if most is not None or not said:
        was = "there was no concurrency limit" if most is None else f"it was {most}"
        said.insert(0, f"has no concurrency limit; {was}")
    return said


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def _limits(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        found = [row for row in at.rows("observe/list_limits", {"most": 1000}) if is_ruled(row)]
    if arguments.json:
        console.print_json(found)
    elif found:
        rows = [
            (
                row["scope"], row["name"],
                "" if row["max_running"] is None else f"{row['running']} of {row['max_running']}", row["rate"] or "",
                "" if row["burst"] is None else row["burst"], "" if row["tokens"] is None else row["tokens"],
                f"in {show_span(row['opens_in'])}" if row["opens_in"] else "", show_partitions(row),
                ", ".join(dict.fromkeys(filter(None, (row["limited_by"], row["rated_by"], row["divided_by"])))),
            )
            for row in found
        ]  # fmt: skip
        console.print_table(_COLUMNS, rows)
    else:
        console.complain("no queue or kind has a limit, and no partitions take turns")
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "limit",
        "set the concurrency limit or rate limit of a queue or a kind",
        "  jobherd limit media 10\n  jobherd limit mail 100/min --burst 10\n  jobherd limit --kind report:year 3\n"
        "  jobherd limit crm --each 2 --each-rate 10/s\n  jobherd limit media off",
        _limit_arguments,
        _limit,
        about="Let no more than N jobs of a queue or a kind run at a time, or no more than a rate start, over all "
        "hosts. Jobs that run above a\nnew limit continue. Both limits can be set. Each attempt counts as a start.",
    ),
    Command(
        "limits",
        "list the limits of queues and kinds, and how much of each is used",
        "  jobherd limits --json",
        _nothing,
        _limits,
        lists=True,
        spans="each",
    ),
)
