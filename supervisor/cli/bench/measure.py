"""Measures round trips, commits, starts of jobs, enqueueing and draining."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._enqueue.options import Options
from jobherd.supervisor.cli.bench.scratch import GLANCE
from jobherd.supervisor.cli.bench.supervised import QUEUE, run_supervisor
from jobherd.supervisor.cli.codes import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.supervisor.cli.database import Session
    from jobherd.supervisor.settings.definitions import Settings

TIMES: Final = 100
"""How many round trips, commits and job starts are measured."""
WARM_UP: Final = 10
GAP: Final = 0.02
"""Seconds between two jobs whose start is measured: the system must be idle before each."""
SLICE: Final = 5000
"""Jobs enqueued by one statement."""
BATCH: Final = 100
SINGLE: Final = 20
"""The share of the jobs that is drained with a claim size of 1: one in this many.

Draining them takes about as long as draining all jobs with a claim size of `BATCH`.
"""
PATIENCE: Final = 60.0
"""Seconds without any progress after which a drain has failed."""


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


def measure(at: Session, dsn: str, settings: Settings, jobs: int) -> dict[str, Any]:
    tell = Teller()
    tell("round trips and commits")
    found: dict[str, Any] = {
        "server": at.connection.info.parameter_status("server_version"),
        "workers": settings.workers,
        "jobs": jobs,
        "round_trip_ms": _spread(lambda: at.row("observe/show_time")),
        "commit_ms": _spread(lambda: at.row("bench/write_wal_record")),
    }
    with run_supervisor(at, dsn, settings, batch=1):
        tell("starts of jobs")
        found["start_ms"] = _starts(at)
        tell("a drain, one job a claim")
        single, _ = _drain(at, max(jobs // SINGLE, settings.workers))
    with run_supervisor(at, dsn, settings, batch=BATCH):
        tell(f"a drain, {BATCH} jobs a claim")
        many, put = _drain(at, jobs)
    tell("")
    return found | {
        "enqueue_per_s": round(put),
        "drain_per_s": {"batch 1": round(single), f"batch {BATCH}": round(many)},
    }


class Teller:
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
        for row in at.rows(
            "enqueue/enqueue_jobs", {**Options().parameters(), "kind": kind, "queue": QUEUE, "payloads": payloads}
        )
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
