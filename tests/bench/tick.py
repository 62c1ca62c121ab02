"""Test schedules under kills and edits: is an instant missing, or does one have two jobs?

python -m tests.bench.tick [--seconds 60] [--processes 8] [--schedules 100]

Maintenance processes enqueue the jobs of schedules with an interval of 50 ms. Meanwhile one of the
processes is killed and one schedule is edited, in turn. The test fails if an instant is missing, or
if a job or an instant exists twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time

from tests.support.ground import ground
from tests.support.seats import Bench
from tests.support.ticks import EDIT, MAKE, ticks, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--events", type=int, default=100, help="kills, and as many edits")
    given = parser.parse_args()
    chance = random.Random(27)
    with ground() as (_, dsn), Bench(dsn) as bench:
        for table in ("ready", "scheduled"):  # No process waits for these jobs.
            bench.ask(f"DROP TRIGGER seen ON jobherd.{table}")
        bench.ask(MAKE, many=given.schedules)
        processes = [bench.start("maintenance") for _ in range(given.processes)]
        began, killed = time.monotonic(), 0
        while killed < given.events or time.monotonic() < began + given.seconds:
            pause = max(0.0, began + given.seconds * (killed + 1) / given.events - time.monotonic())
            time.sleep(min(pause, 1.0))
            if killed < given.events and pause <= 1.0:
                bench.ask(EDIT, n=killed, name=f"s{chance.randrange(1, given.schedules + 1)}")
                victim = processes.pop(chance.randrange(len(processes)))
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                processes.append(bench.start("maintenance"))
                killed += 1
        seconds = time.monotonic() - began
        gaps, doubles, strays, missed = verdict(bench)
        late = bench.ask(
            "SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM noted_at - at)) AS p FROM jobherd.ticks"
        )[0]["p"]
        print(
            f"{ticks(bench)} instants of {given.schedules} schedules in {seconds:.0f} s, {given.processes} processes, "
            f"{killed} kills, {killed} edits: {gaps} gaps, {doubles} doubles, {strays} strays, {missed} missed; "
            f"late by {late[0] * 1000:.0f} ms (median), {late[1] * 1000:.0f} ms (99 %)"
        )
    return 1 if gaps or doubles or strays else 0


if __name__ == "__main__":
    raise SystemExit(main())
