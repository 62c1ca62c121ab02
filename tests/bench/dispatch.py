"""Measure what many workers on one database cost it.

The figures are transactions, rollbacks and claims in vain, busy and idle.

Small drains run in turn: with eight workers and the claim sizes that the product chooses, whose
transactions are counted; and with two and twenty workers and claims of one job, which shows whether
they block each other. A claim in vain found nothing although jobs waited: the last ones of a drain
are among them. Then a fleet of one worker and a fleet of many are idle, and the server counts their
transactions.
"""

from __future__ import annotations

import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

if TYPE_CHECKING:
    from tests.support.postgres import Cluster

WORK = Path(__file__).with_name("work.py")
REST = 3.0
"""Seconds until a fleet has started and the server's statistics include a session's counts."""


class Counts:
    """The server's count of a database's transactions. A session in another database reads it, so reading adds none."""

    def __init__(self, cluster: Cluster, dsn: str) -> None:
        self._outside = psycopg.connect(cluster.dsn(), autocommit=True)
        self._name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]

    def read(self) -> tuple[int, int]:
        statement = "SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = %s"
        return self._outside.execute(statement, [self._name]).fetchone()

    def close(self) -> None:
        self._outside.close()


def claims(herd: Herd) -> tuple[float, float]:
    """How many claims the workers have made, and how many of them found nothing."""
    address = herd.wait_event(lambda event: "metrics and health on" in event.message).message.rpartition(" on ")[2]
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    made, empty = (
        re.search(rf"^jobherd_worker_claims{name}_total (\S+)$", text, re.MULTILINE) for name in ("", "_empty")
    )
    return float(made[1]), float(empty[1])


def main() -> int:
    given = arguments(__doc__, jobs=2000, runs=5, children=64, seconds=30.0)
    report = Report(f"dispatch: {given.jobs} jobs by 8 workers; idle fleets of 1 and {given.children}")
    rates: list[float] = []
    each: list[float] = []
    lost = 0
    few: list[float] = []
    many: list[float] = []
    vain: list[float] = []
    with ground() as (cluster, dsn):
        report.on(dsn)
        with fresh(cluster) as own, Herd(own, WORK, workers=8), psycopg.connect(own, autocommit=True) as connection:
            counts = Counts(cluster, own)
            drain(connection, given.jobs)  # Warm up: plans are made and kinds are known.
            for _ in range(given.runs):
                time.sleep(REST)
                before = counts.read()
                rates.append(drain(connection, given.jobs))
                time.sleep(REST)
                after = counts.read()
                each.append((after[0] - before[0]) / given.jobs)
                lost += after[1] - before[1]
            counts.close()
        for _ in range(given.runs):
            for workers, found in ((2, few), (20, many)):
                with (
                    fresh(cluster) as own,
                    Herd(own, WORK, "--claim-size", "1", "--http", "127.0.0.1:0", workers=workers) as herd,
                    psycopg.connect(own, autocommit=True) as connection,
                ):
                    # Warm up: the plans of twenty sessions take as long as a fifth of such a drain.
                    drain(connection, given.jobs)
                    time.sleep(REST)
                    before = claims(herd)
                    found.append(drain(connection, given.jobs))
                    after = claims(herd)
                    if workers == 20:
                        vain.append((after[1] - before[1]) / given.jobs)
        idle = {}
        for workers in (1, given.children):
            with fresh(cluster) as own, Herd(own, WORK, workers=workers):
                counts = Counts(cluster, own)
                time.sleep(10)
                before, start = counts.read(), time.monotonic()
                time.sleep(given.seconds)
                idle[workers] = (counts.read()[0] - before[0]) / (time.monotonic() - start)
                counts.close()
    report.holds("no transaction of a drain was rolled back", lost == 0)
    report.figure("end to end, 8 workers", rates, unit="jobs/s")
    report.figure("transactions of a job, 8 workers", each, unit="", aim=0.2)
    report.figure("claims of one, 20 workers against 2", many, few, unit="jobs/s", aim=0.9, at_least=True)
    report.figure("claims in vain for a job, 20 workers", vain, unit="", aim=0.05)
    report.figure(
        f"idle, {given.children} children against 1", [idle[given.children]], [idle[1]], unit="transactions/s", aim=1.2
    )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
