"""`bench`: measures what this database delivers for jobs, with a real supervisor in its own schema.

The schema is created for the measurement and dropped at its end, also after Ctrl-C or SIGTERM. If a
measurement is killed, the next one drops its schema. No other queue is read or written. The only
effect on others is an occasional notification, for which a supervisor on the same database checks
its queue once more.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg import errors

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, given_flags
from jobherd.supervisor.cli.console import Column
from jobherd.supervisor.cli.database import Session, chosen, connect, explained, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from jobherd.supervisor.settings.definitions import Settings

SETTINGS: Final = ("dsn", "listen_dsn", "embedded_dir", "workers")
PREFIX: Final = "jobherd_bench_"
QUEUE: Final = "bench"
TIMES: Final = 100
"""How many round trips, commits and job starts are measured."""
WARM_UP: Final = 10
GAP: Final = 0.02
"""Seconds between two jobs whose start is measured: the system must be idle before each."""
SLICE: Final = 5000
"""Jobs enqueued by one statement."""
AHEAD: Final = 32
"""Days of partitions, as many as the maintenance process will require."""
BATCH: Final = 100
SINGLE: Final = 20
"""The share of the jobs that is drained with a claim size of 1: one in this many.

Draining them takes about as long as draining all jobs with a claim size of `BATCH`.
"""
GLANCE: Final = 0.05
START: Final = 60.0
"""Seconds within which the workers must become ready."""
PATIENCE: Final = 60.0
"""Seconds without any progress after which a drain has failed."""
LEAVE: Final = 30.0
CANCEL: Final = 5.0
"""Seconds that the server has to accept a cancel request."""
NOTHING: Final = dict.fromkeys(
    (
        "queue",
        "priority",
        "delay",
        "run_at",
        "max_attempts",
        "timeout",
        "expires_at",
        "tenant",
        "webhook",
        "payload_bytes",
        "parent_id",
        "traceparent",
    )
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Times in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ordered = sorted(1000 * each for each in seconds)
        return cls(*(ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95, 0.99)))


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
        _interruptible(),
        chosen(settings) as dsn,
        explained(),
        connect(dsn, name="bench") as connection,
        _scratch(connection) as at,
    ):
        found = _measure(at, dsn, settings, arguments.jobs)
    if arguments.json:
        console.print_json(found)
    else:
        _print(found)
    return ExitCode.DONE


# -- the schema


class _Interrupted(BaseException):
    """The user wants the measurement to end.

    This is not a KeyboardInterrupt: psycopg would cancel the statement once and then wait for it. A
    cancel request that arrives before its statement has begun cancels nothing.
    """


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end a measurement, so that its schema is dropped."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except _Interrupted:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Interrupted


def _calm(connection: psycopg.Connection[object]) -> None:
    """End the interrupted statement: cancel it repeatedly until it has ended.

    Raises psycopg.Error if the session is lost.
    """
    ours = connection.pgconn
    while ours.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
        connection.cancel_safe(timeout=CANCEL)
        select.select([ours.socket], [], [], GLANCE)
        ours.flush()
        ours.consume_input()
        while not ours.is_busy() and ours.get_result() is not None:
            pass


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block signals: a second Ctrl-C during cleanup would leave the rest behind."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _scratch(connection: psycopg.Connection[object]) -> Iterator[Session]:
    """Yield a session on a new schema with a unique name.

    First drop the schemas of killed measurements; drop the new schema at the end.
    """
    at = Session(connection, PREFIX + secrets.token_hex(6))
    at.row("bench/lock_scratch", {"name": at.schema})
    try:
        _drop_left_behind(at)
        migrate(connection, schema=at.schema)
        # Otherwise the maintenance process does this during the first measured jobs, and blocks
        # settlements.
        at.row("maintenance/keep_partitions", {"ahead": AHEAD, "most": None})
        yield at
    finally:
        with _undisturbed():
            _drop(at)


def _drop(at: Session) -> None:
    """Drop the schema, whatever the session was doing when it was interrupted."""
    try:
        _calm(at.connection)
        at.connection.rollback()
        at.connection.execute(sql.load("bench/drop_scratch", at.schema).encode())
    except psycopg.Error as problem:
        # In a read-only database the schema exists only if the database accepted writes at first.
        if not isinstance(problem, errors.ReadOnlySqlTransaction) or at.schema in {
            row["name"] for row in at.rows("bench/list_scratches")
        }:
            console.complain(
                f"the schema {at.schema} could not be dropped; the next `jobherd bench` on this database drops it"
            )


def _drop_left_behind(at: Session) -> None:
    for row in at.rows("bench/list_scratches"):
        if row["name"] != at.schema and at.row("bench/lock_scratch", {"name": row["name"]})["locked"]:
            _drop(Session(at.connection, row["name"]))
            console.complain(f"dropped the schema {row['name']}, which a measurement that was killed had left")


# -- the measurement


def _measure(at: Session, dsn: str, settings: Settings, jobs: int) -> dict[str, Any]:
    tell = _Teller()
    tell("round trips and commits")
    found: dict[str, Any] = {
        "server": at.connection.info.parameter_status("server_version"),
        "workers": settings.workers,
        "jobs": jobs,
        "round_trip_ms": _spread(lambda: at.row("observe/show_time")),
        "commit_ms": _spread(lambda: at.row("bench/write_wal_record")),
    }
    with _supervisor(at, dsn, settings, batch=1):
        tell("starts of jobs")
        found["start_ms"] = _starts(at)
        tell("a drain, one job a claim")
        single, _ = _drain(at, max(jobs // SINGLE, settings.workers))
    with _supervisor(at, dsn, settings, batch=BATCH):
        tell(f"a drain, {BATCH} jobs a claim")
        many, put = _drain(at, jobs)
    tell("")
    return found | {
        "enqueue_per_s": round(put),
        "drain_per_s": {"batch 1": round(single), f"batch {BATCH}": round(many)},
    }


class _Teller:
    """Shows on a terminal what is being measured, on a line that is erased at the end."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, what: str) -> None:
        if self._shown:
            print(f"\r\x1b[Kmeasuring {what}" if what else "\r\x1b[K", end="", file=sys.stderr, flush=True)


def _spread(action: Callable[[], object]) -> dict[str, float]:
    times = []
    for number in range(-WARM_UP, TIMES):
        start = time.perf_counter()
        action()
        if number >= 0:
            times.append(time.perf_counter() - start)
    return _shown(Spread.of(times))


def _shown(spread: Spread) -> dict[str, float]:
    return {"p50": round(spread.p50, 3), "p95": round(spread.p95, 3), "p99": round(spread.p99, 3)}


def _enqueue(at: Session, kind: str, payloads: list[str]) -> list[int]:
    return [
        row["id"]
        for row in at.rows("enqueue/enqueue_jobs", {**NOTHING, "kind": kind, "queue": QUEUE, "payloads": payloads})
    ]


def _starts(at: Session) -> dict[str, float]:
    """Measure from before the enqueue call to the first statement of the handler, when idle."""
    sent: dict[int, float] = {}
    for number in range(-WARM_UP, TIMES):
        before = time.time()
        (job,) = _enqueue(at, "bench:stamp", ["{}"])
        if number >= 0:
            sent[job] = before
        time.sleep(GAP)
    _wait_empty(at)
    rows = at.rows("observe/show_jobs", {"ids": list(sent)})
    stamps = {row["id"]: float(row["result"]) for row in rows if row["state"] == "completed"}
    if len(stamps) < len(sent):
        raise CommandError(f"{len(sent) - len(stamps)} of {len(sent)} jobs were not completed", ExitCode.WRONG)
    return _shown(Spread.of([stamps[job] - before for job, before in sent.items()]))


_PAUSE: Final = {
    "queue": QUEUE,
    "kind": None,
    "reason": "jobherd bench loads it",
    "resume_at": None,
    "delay": None,
    "actor": None,
}


def _drain(at: Session, jobs: int) -> tuple[float, float]:
    """Enqueue `jobs` jobs into the paused queue, then resume it.

    Returns:
        Jobs drained per second and jobs enqueued per second.
    """
    at.row("control/pause_claims", _PAUSE)
    start = time.monotonic()
    for first in range(0, jobs, SLICE):
        _enqueue(at, "bench:noop", [f'{{"n": {number}}}' for number in range(first, min(first + SLICE, jobs))])
    put = jobs / (time.monotonic() - start)
    since = at.row("observe/show_time")["now"]
    at.row("control/resume_claims", _PAUSE)
    _wait_empty(at)
    past = at.row("observe/sum_finished", {"since": since})
    if past["completed"] < jobs:
        raise CommandError(f"{jobs - past['completed']} of {jobs} jobs were not completed", ExitCode.WRONG)
    return jobs / past["took"], put


def _wait_empty(at: Session) -> None:
    # Poll only with a cheap statement that checks for open jobs: a costlier one would distort the
    # result.
    until = time.monotonic() + PATIENCE
    before = -1
    while at.row("observe/find_work", {"served": None})["left_over"]:
        if time.monotonic() > until:
            past = at.row("observe/sum_finished", {"since": "-infinity"})["ended"]
            if past == before:
                raise CommandError(f"nothing was drained for {PATIENCE:.0f} s", ExitCode.WRONG)
            before, until = past, time.monotonic() + PATIENCE
        time.sleep(GLANCE)


@contextmanager
def _supervisor(at: Session, dsn: str, settings: Settings, *, batch: int) -> Iterator[None]:
    """Run a supervisor on the scratch schema, with its workers ready.

    It does not receive the terminal's Ctrl-C: this process ends it.
    """
    # A folder without jobherd.toml: no settings file of the working directory applies.
    with tempfile.TemporaryDirectory(prefix="jobherd-bench-") as folder:
        said = Path(folder) / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBHERD_")}
        # Not as flags: the process list would show a password.
        environment |= {"JOBHERD_DSN": dsn, "JOBHERD_SCHEMA": at.schema}
        if settings.listen_dsn is not None:
            environment["JOBHERD_LISTEN_DSN"] = settings.listen_dsn
        words = [
            sys.executable,
            "-m",
            "jobherd.supervisor",
            "run",
            "--handlers",
            "jobherd.handlers.jobs_bench",
            "--queues",
            QUEUE,
            "--http",
            "off",
        ]
        words += [
            "--workers",
            str(settings.workers),
            "--claim-size",
            str(batch),
            "--poll",
            "5m",
            "--log-format",
            "text",
        ]
        with said.open("wb") as log:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_ready(at, process, settings.workers, said)
            yield
        finally:
            with _undisturbed():
                _end(process)


def _wait_ready(at: Session, process: subprocess.Popen[bytes], workers: int, said: Path) -> None:
    until = time.monotonic() + START
    while sum(child["kind"] == "worker" for child in at.rows("observe/list_children")) < workers:
        if process.poll() is not None or time.monotonic() > until:
            last = said.read_text(errors="replace").strip().splitlines()[-3:]
            raise CommandError("the supervisor does not start: " + " / ".join(map(console.plain, last)), ExitCode.WRONG)
        time.sleep(GLANCE)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(LEAVE)
    except subprocess.TimeoutExpired:
        process.kill()  # its child processes notice that and exit
        process.wait()


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
