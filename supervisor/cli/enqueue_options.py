"""Defines the arguments of `enqueue`, and converts them to options of jobs. Uses no database."""

from __future__ import annotations

import argparse
from typing import Any

from jobherd.handlers import Unique
from jobherd.handlers._enqueue.options import JobOptions
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import job_id, moment, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="the handler's name")
    parser.add_argument(
        "payload",
        metavar="JSON",
        nargs="?",
        help="the handler's parameters as a JSON object; - reads one a line from standard input (default: {}, or "
        "what is piped in)",
    )
    options = parser.add_argument_group("options of the job (default: what its handler declares)")
    options.add_argument("--queue", metavar="NAME", help="queue of the job")
    options.add_argument("--priority", type=whole, metavar="N", help="lower numbers first; may be negative")
    options.add_argument("--delay", metavar="TIME", help='start it after this time at the earliest, such as "10m"')
    options.add_argument(
        "--run-at",
        type=moment,
        metavar="WHEN",
        help="start it at this time at the earliest, such as 2030-01-31T08:00:00+01:00",
    )
    options.add_argument(
        "--max-attempts", type=whole, metavar="N", help="fail permanently after this number of attempts"
    )
    options.add_argument("--timeout", metavar="TIME", help='for one attempt, like "2m"')
    options.add_argument("--expires-at", type=moment, metavar="WHEN", help="do not start it after this time")
    options.add_argument(
        "--cost",
        type=_amounts,
        metavar="NAME=AMOUNT",
        help="resources of the budget that it uses while it runs, such as memory_mb=900,gpus=1",
    )
    options.add_argument("--tenant", metavar="NAME", help="tenant that owns the job")
    options.add_argument("--partition", metavar="NAME", help="partition of the job in its queue, such as a customer")
    options.add_argument(
        "--after",
        type=_ids,
        metavar="IDS",
        help="start it after these jobs have completed, such as 41,42; if one does not complete, it is canceled",
    )
    options.add_argument("--when", metavar="END", help="how they must end: completed (default), failed or ended")
    options.add_argument("--webhook", metavar="URL", help="URL that is called when the job has finished")
    options.add_argument("--parent", dest="parent_id", type=job_id, metavar="ID", help="parent job that enqueued it")
    options.add_argument(
        "--traceparent", metavar="TRACE", help="the trace that it belongs to, as W3C Trace Context writes it"
    )
    options.add_argument(
        "--unique",
        type=_unique,
        metavar="FIELDS",
        help="enqueue nothing while a job with these fields of the payload is live, such as order_id,$.doc.id; $ is "
        "the whole payload",
    )
    options.add_argument("--unique-key", metavar="TEXT", help="text that makes the job unique instead of its payload")
    options.add_argument("--per-queue", action="store_true", help="each queue has its own keys")
    options.add_argument(
        "--during", metavar="STATES", help="a job holds its key while it is live (default) or waiting, or never"
    )
    options.add_argument(
        "--conflict",
        metavar="WHAT",
        help="if a job holds the key: ignore (default) prints its id, raise fails, replace gives it this payload",
    )
    options.add_argument("--collect", metavar="FIELD", help="append this list to that of the job that holds the key")
    options.add_argument(
        "--unique-for", metavar="TIME", help="time for which the job holds its key, even if it has finished"
    )
    options.add_argument(
        "--debounce",
        metavar="TIME",
        help="give the waiting job this payload, and start it this time after the last one",
    )
    options.add_argument("--max-wait", metavar="TIME", help="longest delay of a debounced job (default: 10 times that)")
    options.add_argument("--throttle", metavar="TIME", help="enqueue at most one job with the key in this time")
    options.add_argument("--edge", metavar="EDGE", help="job that a throttle keeps: leading (default) or trailing")
    options.add_argument(
        "--bytes-file",
        metavar="FILE",
        help="bytes that the handler gets unchanged, as payload_bytes; - reads standard input",
    )


def _amounts(text: str) -> dict[str, float]:
    try:
        pairs = [(name, float(amount)) for name, amount in (each.split("=") for each in text.split(","))]
    except ValueError:
        message = f"{text[:40]!r} are not amounts: write them like memory_mb=900,gpus=1"
        raise argparse.ArgumentTypeError(message) from None
    found = dict(pairs)
    if len(found) < len(pairs):
        message = f"{text[:40]!r} gives two amounts for one name"
        raise argparse.ArgumentTypeError(message)
    return found


def _ids(text: str) -> list[int]:
    return [job_id(one) for one in text.split(",")]


def _unique(text: str) -> bool | list[str]:
    return True if text == "$" else text.split(",")


def job_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the jobs. Raises CommandError."""
    given = ((name, getattr(arguments, name, None)) for name in JobOptions.__annotations__)
    options = {name: value for name, value in given if value is not None}
    if any((arguments.per_queue, arguments.during, arguments.conflict, arguments.collect)):
        options["unique"] = _rule(arguments)
    return options


def _rule(arguments: argparse.Namespace) -> Unique:
    given = {"during": arguments.during, "collect": arguments.collect}
    given["conflict"] = arguments.conflict or ("collect" if arguments.collect else None)
    by = None if arguments.unique in (None, True) else arguments.unique
    try:
        return Unique(by=by, queue=arguments.per_queue, **{name: value for name, value in given.items() if value})
    except ValueError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None
