"""Crash the server in three ways under load.

Its postmaster is killed, one backend is killed, or the server gets an immediate shutdown. After a
killed postmaster and a shutdown the campaign starts the server again, at once or after 5 s
(`--away`).

The same processes continue, nothing is lost and nothing ends twice.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import psycopg

from tests.faults.campaign import Campaign
from tests.support.figures import Report
from tests.support.ground import arguments, ground

OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobherd:%' ORDER BY pid"
HOWS = ("postmaster", "backend", "immediate")


def alive(field: Campaign) -> bool:
    try:
        field.audit.run("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def main() -> int:
    given = arguments(__doc__, crashes=9, rate=50.0, away=5.0)
    dice = random.Random(given.seed)
    report = Report(f"server: {given.crashes} crashes of PostgreSQL, back after 0 or {given.away:g} s", given.seed)
    back: dict[str, list[float]] = {how: [] for how in HOWS}
    with ground() as (cluster, dsn):
        report.on(dsn)
        with Campaign(report, dsn, seed=given.seed, rate=given.rate) as field:
            for number in range(given.crashes):
                field.work_on(dice.randrange(10, 60))
                how, away = HOWS[number % len(HOWS)], given.away * (number // len(HOWS) % 2)
                match how:
                    case "postmaster":
                        cluster.kill()
                    case "immediate":
                        cluster.stop("immediate")
                    case _:
                        pids = [row[0] for row in field.audit.run(OURS)]
                        # The postmaster ends all other backends and restarts the server.
                        os.kill(dice.choice(pids), signal.SIGKILL)
                        field.wait(lambda: not alive(field), "the end of every session")
                if how != "backend":
                    time.sleep(away)
                    cluster.start()
                started = time.monotonic()
                field.audit.reconnect()
                field.work_on(5)
                back[how].append((time.monotonic() - started) * 1000)
            for how, times in back.items():
                report.spread(f"{how}: start of the server to 5 more jobs", times, aims={"max": 5000})
            field.finish(told=given.crashes * 20 + 100)
            bad = field.audit.run("SELECT id, state, attempts, error FROM jobherd.history WHERE state <> 'completed'")
            report.holds("every job completed", not bad, bad[:5] if bad else "")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
