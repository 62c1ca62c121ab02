"""Measure how much the job rate drops while the metrics are flooded.

Clients scrape without pause, never read the answer, or send heads of 10 MB.

The same jobs are drained with and without a flood, in turn. The clients have the lowest priority,
because they run on the same machine and the campaign measures only the cost of answering them. It
also prints the processor time that the clients and the web process used.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psycopg

from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.flood import flooded
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

BENCH = Path(__file__).parents[1] / "bench" / "work.py"


def main() -> int:
    given = arguments(__doc__, pairs=5, jobs=100_000, workers=2)
    report = Report(f"flood: the metrics are flooded while {given.jobs:,} jobs are drained")
    with ground() as (_, dsn), Herd(dsn, BENCH, "--http", "127.0.0.1:0", workers=given.workers) as herd:
        report.on(dsn)
        address = herd.wait_event(lambda event: "metrics and health on" in event.message).message.split(" on ")[1]
        port = int(address.rpartition(":")[2])
        web = herd.wait_event(lambda event: event.message == "web is ready").pid
        with psycopg.connect(dsn, autocommit=True) as connection:
            drain(connection, given.jobs)
            under, alone, taken = [], [], []
            for _ in range(given.pairs):
                alone.append(drain(connection, given.jobs))
                with flooded(port) as clients:
                    since, before = time.monotonic(), [ran(pid) for pid in (web, clients)]
                    under.append(drain(connection, given.jobs))
                    lasted = time.monotonic() - since
                    taken.append([(ran(pid) - was) / lasted for pid, was in zip((web, clients), before, strict=True)])
        for who, shares in zip(("the child that answers", "the clients"), zip(*taken, strict=True), strict=True):
            report.fact(f"of a processor, {who}", " ".join(f"{share:.2f}" for share in shares))
        report.figure(
            "drain under a flood, against the same without", under, alone, unit="jobs/s", aim=0.95, at_least=True
        )
        report.holds("the supervisor exited with 0", herd.stop() == 0)
    return report.end()


def ran(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
