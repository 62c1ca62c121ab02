"""Defines `fair`, which gives the partitions of a queue fair turns. Limits of each partition are in `limits.py`."""

from __future__ import annotations

import argparse
from typing import Final

import orjson

from jobherd.handlers._policy.names import check_partition
from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command
from jobherd.supervisor.cli.database import session

_MOST: Final = 999


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="a queue")
    parser.add_argument(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="PARTITION=N",
        help="jobs that this partition takes at its turn, 1 to 999; may be repeated; 1 removes its weight",
    )
    parser.add_argument("--off", action="store_true", help="serve the queue in the order of its jobs again")


def _weight(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not (name and number.isascii() and number.isdigit() and len(number) < 4 and 1 <= int(number) <= _MOST):
        message = f"{text[:80]!r} is not a partition and a number from 1 to {_MOST}, such as acme=3"
        raise argparse.ArgumentTypeError(message)
    try:
        return check_partition(name), int(number)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _fair(arguments: argparse.Namespace) -> int:
    if arguments.off and arguments.weight:
        raise CommandError("--off excludes --weight: give one of them", ExitCode.USAGE)
    weights = orjson.dumps(dict(arguments.weight)).decode()
    asked = {"queue": arguments.queue, "weights": weights, "off": arguments.off, "actor": actor()}
    with session(arguments) as at:
        before = at.row("control/set_turns", asked)["before"]
    if arguments.off:
        said = "partitions take no turns any more" if before is not None else "partitions took no turns"
    else:
        said = "partitions take turns" + (", as before" if before is not None and not arguments.weight else "")
        said += "".join(f"; {name} takes {weight} jobs at its turn" for name, weight in arguments.weight if weight > 1)
    print(f"{arguments.queue}: {said}")
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "fair",
        "let the partitions of a queue take turns",
        "  jobherd fair crm\n  jobherd fair crm --weight acme=3\n  jobherd fair crm --off",
        _arguments,
        _fair,
        about="Let the partitions of a queue take turns, whatever the number of their jobs. A turn is one job, or as "
        "many as the weight\nof the partition. The order within a partition stays the same.",
    ),
)
