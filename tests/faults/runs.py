"""Reads the runs of jobs that handlers record in a file outside the database (`fault:noted`).

Returns which jobs began more than once, and which runs of a job overlapped.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One run of a job. Times are monotonic. ended: None if it was killed or still runs."""

    job: int
    pid: int
    began: float
    ended: float | None


def read_runs(path: Path) -> list[Run]:
    """Every run so far, in the order of their start. A partial last line is ignored."""
    text = path.read_text(encoding="ascii")
    begun: list[tuple[int, int, float]] = []
    ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    for line in text[: text.rfind("\n") + 1].splitlines():
        what, job, pid, at = line.split()
        if what == "start":
            begun.append((int(job), int(pid), float(at)))
        else:
            ends[int(job), int(pid)].append(float(at))
    return [
        Run(job, pid, at, min((end for end in ends[job, pid] if end >= at), default=None)) for job, pid, at in begun
    ]


def begun_twice(runs: list[Run]) -> list[int]:
    """The jobs that started more than once."""
    return [job for job, times in Counter(run.job for run in runs).items() if times > 1]


def overlaps(runs: list[Run]) -> list[tuple[Run, Run]]:
    """The pairs of overlapping runs of one job, the earlier first.

    A pair whose earlier run was killed is left out, because the end of this run is unknown.
    """
    by_job = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    pairs = (pair for each in by_job.values() for pair in itertools.combinations(each, 2))
    return [(first, second) for first, second in pairs if first.ended is not None and second.began < first.ended]
