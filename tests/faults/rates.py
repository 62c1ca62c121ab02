"""Check a rate limit over two supervisors whose workers are killed.

The limit is for a queue, or with --partitions N for each of its N partitions. Each committed claim
leaves a row with its time, whatever happens to its worker. No window of any length may contain more
starts than the burst and the rate allow. At the end everything must have completed: a lost token
would leave the last jobs waiting. Each partition has its share of the jobs and of the rate.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import psycopg

from tests.sql.test_rates import most_in_any_window
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.system.test_rates import STARTS

WORK = Path(__file__).with_name("work.py")
HERDS = 2
WINDOWS = (0.01, 0.1, 0.3, 1.0, 3.0)
LOAD = """
SELECT jobherd.enqueue('fault:quick', '{}', jsonb_build_object('queue', 'rated', 'max_attempts', 100, 'partition', 'p' || n %% %s))
  FROM generate_series(1, %s) AS n"""
ENDED = "SELECT count(*) FROM jobherd.history"


def main() -> int:
    given = arguments(__doc__, rate=1000, burst=50, seconds=30, kills=50, workers=4, partitions=0)
    dice = random.Random(given.seed)
    report = Report(
        f"rates: {HERDS} supervisors with {given.workers} workers each, {given.rate:,}/s, burst {given.burst}"
        + (f", over {given.partitions} partitions" if given.partitions else ""),
        given.seed,
    )
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection, contextlib.ExitStack() as stack:
        report.on(dsn)
        connection.execute(STARTS)
        parts = max(given.partitions, 1)
        rate, burst = given.rate // parts, max(given.burst // parts, 1)
        limit = "limit_each_rate" if given.partitions else "limit"
        connection.execute(f"SELECT jobherd.{limit}('rated', %s, burst => %s)", [f"{rate}/s", burst])
        jobs = given.rate * given.seconds
        herds = [
            stack.enter_context(Herd(dsn, WORK, "--poll", "300s", "--max-claim-batch", "50", workers=given.workers))
            for _ in range(HERDS)
        ]
        connection.execute(LOAD, [parts, jobs])
        start, kills, until = time.monotonic(), 0, time.monotonic() + 600
        while (ended := connection.execute(ENDED).fetchall()[0][0]) < jobs and time.monotonic() < until:
            time.sleep(dice.uniform(0.5, 1.5) * given.seconds / (given.kills + 1) / 2)
            pids = dice.choice(herds).worker_pids()
            if pids and kills < given.kills:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd := os.pidfd_open(dice.choice(pids)), signal.SIGKILL)
                    os.close(pidfd)
                    kills += 1
        took = time.monotonic() - start
        times: dict[str | None, list[float]] = {}
        for lane, at, number in connection.execute("SELECT lane, extract(epoch FROM at), number FROM public.starts"):
            times.setdefault(lane, []).extend([float(at)] * number)
        starts = sum(map(len, times.values()))
        codes = [herd.stop() for herd in herds]
        report.fact(
            "starts",
            f"{starts:,} of {jobs:,} jobs in {took:.0f} s, {starts / took:,.0f} a second, {kills} kills",
        )
        for window in WINDOWS:
            most = max(most_in_any_window(found, window) for found in times.values())
            allowed = burst + rate * window
            report.holds(f"no window of {window:g} s holds more than {allowed:,.0f} starts", most <= allowed, most)
        report.holds("no token was lost: every job has ended", ended == jobs, ended)
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
