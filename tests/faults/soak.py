"""Run at half load for hours: what leaks, what grows, what becomes slower? `make soak HOURS=2`

Workers are replaced by age and by count all the time. For a sixth of the run, at most 20 minutes, a
transaction in another session pins the xmin, so that VACUUM cannot remove rows. A VACUUM of all
tables runs twelve times. Recorded every ten seconds: memory (PSS) and descriptors of each process,
zombies, dead rows and sizes of the tables, and how long jobs waited for their start. The samples are
in .bench/soak/, and `make chaos-page` draws them.

You can end a run at any time with TERM or Ctrl-C. It is then judged by the samples so far.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.faults import ledger
from tests.support.figures import Report, machine
from tests.support.ground import arguments, ground
from tests.support.herd import Herd, descendants
from tests.support.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 50),
    ("fault:sleep", {"seconds": 0.005}, 25),
    ("fault:burn", {"seconds": 0.005}, 15),
    ("fault:flaky", {}, 5),
    ("fault:quick", {}, 5, {"delay": "5 seconds"}),
]
FLAGS = ("--poll", "1s", "--max-jobs", "3000", "--max-age", "3m", "--respawn-initial", "10ms")
TRIAL = 4000
"""Jobs that run at full speed first, to determine half load."""
PINNED = 1200.0
TABLES = ("ready", "scheduled", "running", "supervisors", "children")
LOOK = """
SELECT coalesce((SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'jobherd' AND relname = ANY (%(tables)s)), 0)::float8 AS dead,
       (SELECT sum(pg_total_relation_size(('jobherd.' || t)::regclass)) FROM unnest(%(tables)s) AS t)::float8 AS bytes,
       (SELECT count(*) FROM jobherd.ready)::float8 AS ready, w.*
  FROM (SELECT count(*)::float8 AS jobs, percentile_cont(0.5) WITHIN GROUP (ORDER BY waited) * 1000 AS p50, percentile_cont(0.99) WITHIN GROUP (ORDER BY waited) * 1000 AS p99
          FROM (SELECT extract(epoch FROM started_at - greatest(run_at, created_at))::float8 AS waited FROM jobherd.history
                 WHERE finished_at > clock_timestamp() - make_interval(secs => %(span)s) AND attempts = 1) AS h) AS w"""


def measure(parent: int) -> tuple[dict[str, Any], set[int]]:
    """Measure the processes of a supervisor.

    Returns:
        Kilobytes and descriptors by role, and the pids of zombies.
    """
    memory: dict[str, int] = {}
    files: dict[str, int] = {}
    for pid in [parent, *descendants(parent)]:
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
            role = (
                "parent"
                if pid == parent
                else next((word for word in title if word in ("worker", "maintenance")), "other")
            )
            pss = next(
                line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")
            )
            memory[role] = memory.get(role, 0) + int(pss.split()[1])
            files[role] = max(files.get(role, 0), len(os.listdir(f"/proc/{pid}/fd")))
    zombies = set()
    with contextlib.suppress(OSError):
        for pid in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    zombies.add(pid)
    return {"memory": memory, "files": files, "zombies": len(zombies)}, zombies


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The rise per hour: least squares over the second half of the run, after the warm-up."""
    warm = points[len(points) // 2 :]
    if len(warm) < 3:
        return float("nan")
    x, y = sum(at for at, _ in warm) / len(warm), sum(value for _, value in warm) / len(warm)
    return sum((at - x) * (value - y) for at, value in warm) / sum((at - x) ** 2 for at, _ in warm) * 3600


def full_speed(connection: psycopg.Connection[Any]) -> float:
    """Jobs per second of a fleet with more jobs than it can run."""
    for kind, payload, weight, *_ in KINDS:
        connection.execute(
            "INSERT INTO jobherd.ready (kind, payload) SELECT %s, %s::json FROM generate_series(1, %s)",
            [kind, json.dumps(payload), TRIAL * weight // 100],
        )
    connection.execute("SELECT pg_notify('jobherd_jobs', 'default')")
    begun = time.monotonic()
    while connection.execute("SELECT count(*) FROM jobherd.ready").fetchall()[0][0]:
        time.sleep(0.05)
    return TRIAL / (time.monotonic() - begun)


def main() -> int:
    given = arguments(__doc__, hours=2.0, workers=2, every=10.0)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: stopped.append(which))
    seconds = given.hours * 3600
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.jsonl"
    report = Report(f"soak: {given.hours:g} hours of half load", given.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        ground() as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        report.on(dsn)
        samples: list[dict[str, Any]] = []
        lingering: set[int] = set()
        seen: set[int] = set()
        with Herd(dsn, WORK, *FLAGS, workers=given.workers) as herd, (ledger.folder("soak") / stamp).open("w") as file:
            rate = full_speed(connection) / 2
            begun = time.monotonic()
            pin: psycopg.Connection[Any] | None = None
            vacuums = 0
            with Producer(
                dsn, Path(folder, "acknowledged"), seed=given.seed, rate=rate, kinds=KINDS, most=100_000
            ) as producer:
                while (now := time.monotonic() - begun) < seconds and not stopped:
                    time.sleep(min(given.every, seconds / 20))
                    pinned = seconds / 3 <= now < seconds / 3 + min(PINNED, seconds / 6)
                    if pinned and pin is None:
                        pin = psycopg.connect(dsn)
                        pin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                        pin.execute("SELECT count(*) FROM jobherd.ready")
                    elif not pinned and pin is not None:
                        pin.close()
                        pin = None
                    if now >= seconds / 12 * (vacuums + 1):
                        connection.execute("VACUUM")
                        vacuums += 1
                    sample, zombies = measure(herd.pid)
                    lingering |= zombies & seen
                    seen = zombies
                    row = connection.execute(LOOK, {"tables": list(TABLES), "span": given.every})
                    names = [column.name for column in row.description or ()]
                    samples.append(
                        {"at": now, "pinned": pinned, **sample, **dict(zip(names, row.fetchall()[0], strict=True))}
                    )
                    file.write(json.dumps(samples[-1]) + "\n")
                    file.flush()
                acknowledged = producer.stop()
            if pin is not None:
                pin.close()
            until = time.monotonic() + 120
            left = (
                "SELECT count(*) FROM jobherd.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled', 'expired')"
            )
            while connection.execute(left).fetchall()[0][0] and time.monotonic() < until:
                time.sleep(0.2)
            respawns = sum("is ready" in event.message for event in herd.events)
            code = herd.stop()
        done = {job for (job,) in connection.execute("SELECT id FROM jobherd.history WHERE state = 'completed'")}
        lost = set(acknowledged) - done
        ran = samples[-1]["at"] if samples else 0.0
        slopes = {
            role: slope([(each["at"], each["memory"].get(role, 0) / 1024) for each in samples])
            for role in ("parent", "maintenance", "worker")
        }
        report.fact(
            "run",
            f"{ran / 60:.0f} minutes at {rate:.0f} jobs a second, {len(acknowledged):,} jobs, {respawns} children",
        )
        report.fact("memory, MB an hour in the second half", {role: round(value, 2) for role, value in slopes.items()})
        report.spread(
            "waiting for the start, p99 of each window", [each["p99"] for each in samples if each["p99"] is not None]
        )
        report.holds("no job is lost, all completed", not lost, sorted(lost)[:5] if lost else "")
        report.holds("no zombie was seen twice", not lingering, sorted(lingering) or "")
        first, last = samples[: len(samples) // 4], samples[-len(samples) // 4 :]
        for role in ("parent", "maintenance", "worker"):
            most = [max((each["files"].get(role, 0) for each in part), default=0) for part in (first, last)]
            report.holds(
                f"descriptors of {role}: no more in the last quarter than 4 above the first",
                most[1] <= most[0] + 4,
                most,
            )
        report.holds("the supervisor exited with 0", code == 0, code)
        ledger.note(
            "soak", file=stamp, seconds=ran, rate=rate, jobs=len(acknowledged), children=respawns, slopes=slopes, machine=machine(dsn),
            broken=report.broken,
        )  # fmt: skip
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
