"""Hold an old snapshot open while jobs arrive continuously.

Queues in a table classically collapse in this situation, because VACUUM can remove no row.

A session opens a transaction and stays in it. Jobs arrive at a steady rate, in small transactions, at
a fleet that is otherwise idle. A probe claims ten times a second and rolls back. Most of the time it
finds no job, so its cost is that of scanning the dead rows. It is compared with the first window, in
which few rows are dead. The aim is for `--minutes 20`; a shorter run shows only the beginning. With
`--delayed 10` a tenth of the jobs is delayed, and their ids are before the position where claims that
seek start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psycopg

from jobherd.workers.claim.scan_start import SOUGHT, ScanStart
from jobherd.workers.job.row import claimed_jobs
from tests.bench.jobs import PAYLOAD, is_empty, wait_until
from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.support.queue import Queue

WORK = Path(__file__).with_name("work.py")
TICK = 0.02
"""Seconds between two arrivals."""
PROBE = 0.1
WINDOWS = 10
PARTS = 5
OFFER = f"INSERT INTO jobherd.ready (kind, payload) SELECT 'bench:noop', {PAYLOAD} FROM generate_series(1, %s) AS n"
LATER = f"INSERT INTO jobherd.scheduled (kind, payload, run_at) SELECT 'bench:noop', {PAYLOAD}, now() + '2 s' FROM generate_series(1, %s) AS n"


def main() -> int:
    given = arguments(__doc__, minutes=20.0, rate=1000, workers=2, batch=10, walk=0, delayed=0)
    report = Report(f"pinned: a snapshot of {given.minutes:g} minutes, {given.rate} jobs/s offered")
    window = given.minutes * 60 / WINDOWS
    probes: list[list[float]] = [[] for _ in range(WINDOWS)]
    with (
        ground() as (_, dsn),
        Herd(dsn, WORK, "--claim-size", str(given.batch), workers=given.workers) as herd,
        Queue(dsn) as queue,
    ):
        report.on(dsn)
        producer = queue.connection
        child = queue.child()
        claim = child.parameters(given.batch)
        with psycopg.connect(dsn) as reader, psycopg.connect(dsn, autocommit=True) as probing:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            probing.execute(queue.text("session/force_index_plans"), {"local": False})
            stride = ScanStart()

            def probe() -> float:
                """Claim like a worker: walk from the head, and seek once the walk has become long.

                With `--walk 1` it always walks.
                """
                if stride.doubt and not given.walk:
                    dead = {
                        table: dead for table, dead, _ in probing.execute(queue.text("maintenance/count_dead_rows"))
                    }
                    stride.note_dead(dead["ready"], named=False, now=time.monotonic())
                sought = stride.until > time.monotonic()
                place = dict(
                    zip(("past_queue", "past_priority", "past_id"), stride.place or (None, None, None), strict=True)
                )
                with probing.transaction(force_rollback=True):
                    begun = time.perf_counter()
                    rows = probing.execute(
                        queue.text(SOUGHT if sought else "claim/claim_jobs"),
                        claim | place | {"back": False},
                        prepare=True,
                    ).fetchall()
                    took = time.perf_counter() - begun
                stride.note_claim(claimed_jobs(rows), sought=sought, took=took, together=False, now=time.monotonic())
                walks.append(not sought)
                return took * 1000

            walks: list[bool] = []

            for _ in range(20):
                probe()
            reader.execute("SELECT count(*) FROM jobherd.ready")
            start = due = time.monotonic()
            next_probe, offered = start, 0
            while (now := time.monotonic()) < start + window * WINDOWS:
                wanted = round((now - start) * given.rate) - offered
                late = round((offered + wanted) * given.delayed / 100) - round(offered * given.delayed / 100)
                producer.execute(OFFER, [wanted - late])
                if late:
                    producer.execute(LATER, [late])
                offered += wanted
                if now >= next_probe:
                    probes[min(WINDOWS - 1, int((now - start) / window))].append(probe())
                    next_probe = now + PROBE
                due += TICK
                time.sleep(max(0.0, due - time.monotonic()))
            behind = queue.count("ready")
            reader.execute("SELECT count(*) FROM jobherd.supervisors")  # The snapshot is still the same.
            reader.rollback()
        wait_until(lambda: is_empty(producer) and not queue.count("scheduled"))
        waits = producer.execute(
            "SELECT width_bucket(extract(epoch FROM created_at - min(created_at) OVER ())::double precision, 0, %s, %s),"
            " extract(epoch FROM started_at - greatest(run_at, created_at))::double precision * 1000, run_at > created_at"
            " FROM jobherd.history WHERE state = 'completed'",
            [window * WINDOWS, WINDOWS],
        ).fetchall()
        report.holds("the supervisor exited with 0", herd.stop() == 0)
    report.holds("every job was completed", len(waits) == offered, f"{len(waits):,} of {offered:,}")
    report.fact("probes that walked", f"{sum(walks):,} of {len(walks):,}")
    report.spread("claim, first window", probes[0])
    report.spread("claim, last window", probes[-1])
    # Every fifth probe belongs to the same part: five pairs of p99s, each over the whole window.
    late, early = ([at(window[part::PARTS], 0.99) for part in range(PARTS)] for window in (probes[-1], probes[0]))
    report.figure("claim p99 under an old snapshot, last window against first", late, early, unit="ms", aim=2)
    report.figure(
        "claim p50 under an old snapshot, last window against first",
        [at(probes[-1], 0.5)],
        [at(probes[0], 0.5)],
        unit="ms",
    )
    started = [
        [wait for bucket, wait, late in waits if min(bucket, WINDOWS) == number and not late]
        for number in range(1, WINDOWS + 1)
    ]
    back = [
        [wait for bucket, wait, late in waits if min(bucket, WINDOWS) == number and late]
        for number in range(1, WINDOWS + 1)
    ]
    report.figure("jobs that waited at the end, in seconds of the offered rate", [behind / given.rate], unit="s", aim=1)
    minutes = [window / 60 * (number + 0.5) for number in range(WINDOWS)]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        report.curve(
            "claim, ms by minute",
            name,
            [(minute, at(each, share)) for minute, each in zip(minutes, probes, strict=True)],
        )
        report.fact(f"enqueue to start {name} by window, ms", ", ".join(f"{at(each, share):.1f}" for each in started))
        if given.delayed:
            report.fact(f"due to start {name} by window, ms", ", ".join(f"{at(each, share):.1f}" for each in back))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
