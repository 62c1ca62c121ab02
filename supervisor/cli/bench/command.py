"""`bench`: measures what this database delivers for jobs, with a real supervisor in its own schema.

The schema is created for the measurement and dropped at its end, also after Ctrl-C or SIGTERM. If a
measurement is killed, the next one drops its schema. No other queue is read or written. The only
effect on others is an occasional notification, for which a supervisor on the same database checks
its queue once more.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.bench.measure import measure
from jobherd.supervisor.cli.bench.scratch import interruptible, scratch_schema
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, given_flags
from jobherd.supervisor.cli.console import Column
from jobherd.supervisor.cli.database import chosen, connect, explained, load_settings

SETTINGS: Final = ("dsn", "listen_dsn", "embedded_dir", "workers")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=20_000,
        metavar="N",
        help="how many jobs are drained in batches, from 100; default 20,000",
    )


def _jobs(text: str) -> int:
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 8 or not 100 <= int(digits) <= 10_000_000:
        message = f"{text[:40]!r} is not a whole number from 100 to 10,000,000"
        raise argparse.ArgumentTypeError(message)
    return int(digits)


def _run(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=SETTINGS)
    if not settings.workers:
        raise CommandError("a measurement needs a worker: give --workers 1 or more", ExitCode.CONFIGURATION)
    with (
        interruptible(),
        chosen(settings) as dsn,
        explained(),
        connect(dsn, name="bench") as connection,
        scratch_schema(connection) as at,
    ):
        found = measure(at, dsn, settings, arguments.jobs)
    if arguments.json:
        console.print_json(found)
    else:
        _print(found)
    return ExitCode.DONE


def _print(found: dict[str, Any]) -> None:
    times = (("round trip", "round_trip_ms"), ("durable commit", "commit_ms"), ("enqueue to start", "start_ms"))
    rows: list[list[object]] = [
        [label, *(f"{found[name][share]:.2f} ms" for share in ("p50", "p95", "p99"))] for label, name in times
    ]
    console.print_table(
        [Column("TIME"), Column("MEDIAN", right=True), Column("P95", right=True), Column("P99", right=True)], rows
    )
    print()
    rates = [["enqueue, in bulk", found["enqueue_per_s"]]]
    rates += [[f"drain, {name}", rate] for name, rate in found["drain_per_s"].items()]
    console.print_table([Column("RATE"), Column("JOBS/S", right=True)], [[label, f"{rate:,}"] for label, rate in rates])
    print(f"\nPostgreSQL {found['server']}, {found['workers']} workers, {found['jobs']:,} jobs that do nothing")


COMMANDS: Final = (
    Command(
        "bench",
        "benchmark this database",
        "  jobherd bench --dsn postgresql://jobs@db/app --workers 4",
        _arguments,
        _run,
        about="Measure this database with a real supervisor: round trip, commit, start of a job, enqueueing, "
        "draining.\n"
        "The benchmark creates its own schema and drops it again. It does not touch existing jobs. It uses the whole "
        "host for some seconds.",
        settings=SETTINGS,
        lists=True,
    ),
)
