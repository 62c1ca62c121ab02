"""Kill workers with SIGKILL at any time within a claim of several jobs: does a finished job run again?

Each job writes a line when it starts and a line when it ends. It appends each line to a file with
one write, so a kill cannot leave a partial line. A job has finished once its worker has started
another job after its end. Such a job must never start again, and each job must end exactly once.

With `--plain 1`, the jobs qualify for the loop of short jobs, and workers live long enough to learn
the kind.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
ALIVE = "SELECT pid FROM jobherd.children WHERE kind = 'worker'"
LEFT = "SELECT count(*) FROM jobherd.jobs WHERE state IN ('ready', 'running', 'scheduled', 'retrying')"


def again(lines: list[str]) -> tuple[int, int]:
    """How many jobs had finished, and how often one of these started again."""
    through: set[str] = set()
    ended: dict[str, list[str]] = defaultdict(list)
    repeated = 0
    for line in lines:
        what, pid, job, *_ = line.split()
        if what == "start":
            repeated += job in through
            through.update(ended.pop(pid, ()))
        else:
            ended[pid].append(job)
    return len(through), repeated


def main() -> int:
    given = arguments(__doc__, kills=1000, workers=2, plain=0)
    dice = random.Random(given.seed)
    report = Report(f"batches: {given.kills} kills in the middle of batches, seed {given.seed}")
    with (
        tempfile.TemporaryDirectory() as folder,
        ground() as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        report.on(dsn)
        path = Path(folder) / "lines"
        path.touch()
        jobs = kills = 0
        # Each death counts as a consecutive crash of the slot, which backs off. With the default
        # backoff a campaign would take a day.
        with Herd(
            dsn, WORK, "--poll", "1s", "--respawn-initial", "10ms", "--respawn-max", "100ms", workers=given.workers
        ):
            while kills < given.kills:
                if connection.execute("SELECT count(*) FROM jobherd.ready").fetchone()[0] < 2000:
                    connection.execute(
                        "INSERT INTO jobherd.ready (kind, payload) SELECT %s, CASE WHEN %s::int > 0 THEN json_build_object('path', %s::text, 'n', n)"
                        " ELSE json_build_object('path', %s::text) END FROM generate_series(%s::int, %s::int) AS n",
                        [
                            "fault:plain" if given.plain else "fault:line",
                            given.plain,
                            str(path),
                            str(path),
                            jobs + 1,
                            jobs + 5000,
                        ],
                    )
                    jobs += 5000
                time.sleep(dice.uniform(0.0, 1.0 if given.plain else 0.05))
                for (pid,) in connection.execute(ALIVE + " ORDER BY random() LIMIT 1").fetchall():
                    try:
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
                    except ProcessLookupError:
                        continue
            until = time.monotonic() + 300
            while connection.execute(LEFT).fetchone()[0] and time.monotonic() < until:
                time.sleep(0.2)
        ends = connection.execute("SELECT state, count(*) FROM jobherd.history GROUP BY 1").fetchall()
        path_lines = path.read_text().splitlines()
        through, repeated = again(path_lines)
        deaths = connection.execute(
            "SELECT count(*) FROM jobherd.attempts WHERE error_code = 'WORKER_CRASHED'"
        ).fetchone()[0]
    report.holds("every job finished exactly once, as completed", dict(ends) == {"completed": jobs}, ends)
    report.holds("no finished job was started again", not repeated, f"{repeated} of {through:,}")
    starts = [line.split() for line in path_lines if line.startswith("start")]
    if given.plain:
        short = sum(line[-1] == "short" for line in starts)
        report.holds(
            "the loop of short jobs ran a fifth of them or more",
            short > len(starts) / 5,
            f"{short:,} of {len(starts):,}",
        )
    report.fact("kills, of which this many hit a running job", f"{kills}, {deaths}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
