"""Measure where the supervisor's time is spent while many workers drain a queue.

py-spy samples its stack some hundred times a second.

py-spy reads the supervisor's memory from outside and does not stop it; it discards inconsistent
stacks. A sample counts while the supervisor is on a processor or waits for one. So shares are shares
of the time that it uses, which the kernel counts. The time is assigned to the last line
of Jobherd's own code on the stack, including the time in libraries and in the kernel. A user other
than root may sample only if the system allows it (`kernel.yama.ptrace_scope = 0`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from tests.bench.fleet import WORK, processor
from tests.bench.jobs import ended, hold, is_empty, load, release, wait_until
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

SPY = str(Path(sys.executable).with_name("py-spy"))
RATE = 200
SHOWN = 12
OURS = ("supervisor/", "workers/", "sql/")


def main() -> int:
    given = arguments(__doc__, children=64, jobs=1_000_000, batch=100)
    report = Report(f"parent: where its time goes, {given.children} children, {given.jobs:,} jobs")
    with (
        tempfile.TemporaryDirectory() as folder,
        ground() as (_, dsn),
        Herd(dsn, WORK, "--claim-size", str(given.batch), workers=given.children) as herd,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        report.on(dsn)
        hold(connection)
        load(connection, given.jobs)
        stacks = Path(folder, "stacks")
        words = [
            "record",
            "--pid",
            str(herd.pid),
            "--nonblocking",
            "--rate",
            str(RATE),
            "--format",
            "raw",
            "--full-filenames",
            "--output",
            str(stacks),
        ]
        with subprocess.Popen(
            [SPY, *words, "--duration", "unlimited"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as spy:
            time.sleep(1)
            used, begun = processor(herd.pid), release(connection)
            wait_until(lambda: is_empty(connection), glance=0.05)
            used, took = processor(herd.pid) - used, ended(connection, begun)[-1]
            spy.send_signal(signal.SIGINT)
            said = spy.communicate(timeout=60)[0].decode()
        report.holds("the supervisor exited with 0", herd.stop() == 0)
        seen = stacks.exists() and stacks.stat().st_size > 0
        report.holds("the profiler recorded stacks", seen, "" if seen else said[-500:])
        lines, parts = shares(stacks.read_text() if stacks.exists() else "")
    report.fact("the supervisor's share of a core", f"{100 * used / took:.2f} % of {took:.1f} s")
    total = sum(lines.values()) or 1
    report.fact("samples in which the supervisor ran", f"{total:,}")
    for title, counts in (("by module", parts), ("by function", lines)):
        report.fact(title, "")
        for name, count in counts.most_common(SHOWN):
            report.fact(f"  {name}", f"{100 * count / total:.1f} %")
    return report.end()


def shares(text: str) -> tuple[Counter[str], Counter[str]]:
    """Count the samples by the last function of Jobherd on the stack, and by its module, in py-spy's raw format.

    >>> shares("main (/x/supervisor/cli/run.py:3);_turn (/x/supervisor/loop.py:9);select (/usr/lib/selectors.py:4) 7")[0]
    Counter({'supervisor/loop.py _turn': 7})
    """
    lines: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for row in text.splitlines():
        stack, _, count = row.rpartition(" ")
        for frame in reversed(stack.split(";")):
            function, _, where = frame.partition(" (")
            path = next(
                (path[path.index(ours) :] for path in [where.partition(":")[0]] for ours in OURS if ours in path), None
            )
            if path is not None:
                lines[f"{path} {function}"] += int(count)
                parts[path] += int(count)
                break
    return lines, parts


if __name__ == "__main__":
    sys.exit(main())
