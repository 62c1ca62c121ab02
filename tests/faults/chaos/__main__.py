"""Mix all faults, several a second, over two supervisors and their server: `make chaos SEED=... MINUTES=...`

The faults are drawn from a seed and affect the supervisors, their network and their server. Faults do
not wait for each other: child processes are killed while others are frozen, while the server
restarts, while a supervisor starts. Producers write the ids of acknowledged jobs to files outside the
database.

Checked meanwhile: no row is running without a process that runs it, and no job completes twice.
Checked at the end, when all faults are taken back: every acknowledged job has finished once; what a
job's transaction wrote exists exactly once if the job completed, and not otherwise; every attempt is
explained; no process and no session is left.

You can end a run at any time with TERM or Ctrl-C. It is then judged by what was done so far. Each run
adds a line to .bench/chaos/runs.jsonl, from which `make chaos-page` makes
docs/project/fault-campaigns.md, and a journal of its faults next to it. A failed run also leaves the
steps of the jobs concerned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.faults.chaos.farm import CANARY, WORK, files_of
from tests.faults.chaos.storm import Storm
from tests.faults.chaos.verdict import INSTALL, dump, judge, judge_pages, judge_rest, recoveries
from tests.faults.ledger import folder as folder_of
from tests.faults.ledger import note
from tests.support.audit import Audit
from tests.support.figures import Report, machine
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, ROOT, Herd
from tests.support.processes import become_reaper
from tests.support.producer import Producer

if TYPE_CHECKING:
    import argparse

KINDS = [
    ("chaos:quick", {"secret": CANARY}, 25),
    ("chaos:line", {}, 25),
    ("chaos:line", {"seconds": 0.05}, 8, {"queue": "bulk"}),
    ("chaos:line", {"seconds": 2.0}, 0.4),
    ("chaos:line", {}, 5, {"delay": "2 seconds", "priority": -1}),
    ("chaos:burn", {}, 6),
    ("chaos:effect", {}, 15),
    ("chaos:halfway", {}, 8),
    ("chaos:capped", {}, 4, {"queue": "bulk"}),
    ("chaos:exclusive", {}, 3),
    ("chaos:flaky", {"secret": CANARY}, 6),
    ("chaos:undecided", {}, 4),
    ("chaos:brittle", {}, 3),
    ("chaos:crash", {}, 1),
    ("chaos:crash", {"times": 5}, 0.3),
    ("chaos:stuck", {}, 0.15),
]
SHOWN = 200
TOLD = 20
PACED = 1000


def main() -> int:
    given = arguments(__doc__, minutes=10.0, faults=10**9, rate=12.0, workers=3, jobs=160.0)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: stopped.append(which))
    become_reaper()
    with tempfile.TemporaryDirectory(prefix="jobherd-chaos-") as folder:
        return storm_through(given, Path(folder), stopped)


def storm_through(given: argparse.Namespace, folder: Path, stopped: list[int]) -> int:
    report = Report(f"chaos: {given.minutes:g} minutes of faults drawn by {given.rate:g} a second", given.seed)
    journal = folder_of("chaos") / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{given.seed}.jsonl"
    with ground() as (cluster, dsn):
        report.on(dsn)
        with Herd(dsn, WORK, workers=1) as first:  # It registers the kinds.
            base = files_of(first)
        audit = Audit(dsn)
        audit.run(INSTALL)
        audit.run("SELECT jobherd.set_limit(kind => 'chaos:capped', max_running => 2)")
        storm = Storm(cluster, dsn, folder, seed=given.seed, rate=given.rate, workers=given.workers, journal=journal)
        try:
            storm.begin()
            before = pace(storm, audit)
            with contextlib.ExitStack() as stack:
                producers = [
                    stack.enter_context(
                        Producer(
                            through,
                            folder / f"acknowledged-{n}",
                            seed=given.seed + n,
                            rate=given.jobs / 2,
                            kinds=KINDS,
                            most=300,
                        )
                    )
                    for n, through in enumerate([dsn, storm.farms[0].proxy.dsn])
                ]
                begun = time.monotonic()
                storm.blow(given.minutes * 60, given.faults, lambda: bool(stopped))
                elapsed = time.monotonic() - begun
                storm.calm()
                acknowledged = [job for producer in producers for job in producer.stop()]
            audit.reconnect()
            over = settle(storm, audit)
            judge_rest(report, audit, base=base, now=[farm.descriptors() for farm in storm.farms])
            after = pace(storm, audit)
            acknowledged += storm.extra
            report.aim(
                "what they do a second when all is over, against before the first fault",
                after / before,
                0.9,
                at_least=True,
            )
            left = [farm.leave() for farm in storm.farms]
            report.fact(
                "faults",
                f"{storm.faults.total():,} in {elapsed:.0f} s, {storm.faults.total() / elapsed * 60:.0f} a minute",
            )
            for name, count in storm.faults.most_common():
                report.fact(f"  {name}", count)
            report.fact("operator commands", dict(storm.deeds.most_common()))
            report.fact(
                "supervisors, and starts of the server",
                f"{sum(farm.supervisors for farm in storm.farms)}, {len(storm.started)}",
            )
            took = recoveries(audit, storm.events, storm.started)
            took["a supervisor dies: no process of it left"] = [
                seconds * 1000 for farm in storm.farms for seconds in farm.gone
            ]
            for label, values in took.items():
                report.spread(label, values)
            report.holds(
                "no check failed during the faults", not storm.wrongs, storm.wrongs[:3] if storm.wrongs else ""
            )
            report.holds("both supervisors exited with 0", left == [0, 0], left)
            lines, happened = sum(farm.lines for farm in storm.farms), storm.faults.total() + storm.deeds.total()
            report.holds(
                f"no more than {TOLD} log lines for each fault or operator command",
                lines <= TOLD * happened,
                f"{lines:,} for {happened:,}",
            )
            concerned = judge(report, audit, acknowledged, folder / "notes", over=over)
            judge_pages(report, audit)
            if report.is_broken:
                dump(audit, concerned, journal.with_suffix(".steps.jsonl"))
            alive = marked(str(folder))
            report.holds("no process is left", not alive, alive or "")
            note(
                "chaos", seed=given.seed, seconds=elapsed, machine=machine(dsn), faults=storm.faults, deeds=storm.deeds, jobs=len(acknowledged),
                recoveries=took, ownerless=storm.ownerless, broken=report.broken,
            )  # fmt: skip
            audit.close()
        finally:
            storm.close()
    if report.is_broken:
        print(f"the last of what was done (all of it: {journal.relative_to(ROOT)}):")
        for event in list(storm.events)[-SHOWN:]:
            print(
                f"  {event.number} {event.at:.3f} {event.name}: {event.target}"
                + (f" for {event.lasts:.2f} s" if event.lasts else "")
            )
    return report.end()


def settle(storm: Storm, audit: Audit) -> bool:
    """Wait until all jobs have finished and both supervisors run; return whether they did within the limit."""
    until = time.monotonic() + 3 * LIMIT
    while time.monotonic() < until:
        storm.rest()
        with contextlib.suppress(psycopg.OperationalError):
            # A supervisor that was terminated just before still runs, and its successor may not run
            # yet: neither exits with 0 when it is terminated now.
            if not audit.waiting() and all(farm.is_up() and not farm.leaving for farm in storm.farms):
                return True
    return False


def pace(storm: Storm, audit: Audit) -> float:
    """Return the jobs per second of both supervisors without faults, from the first enqueue to the last end."""
    begun = time.monotonic()
    storm.extra += [
        job for (job,) in audit.run("SELECT jobherd.enqueue('chaos:quick') FROM generate_series(1, %s)", PACED)
    ]
    while audit.waiting() and time.monotonic() < begun + LIMIT:
        time.sleep(0.01)
    return PACED / (time.monotonic() - begun)


def marked(mark: str) -> Counter[str]:
    """Count the processes with this chaos folder in their environment, by command line."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and f"CHAOS_FOLDER={mark}".encode() in Path("/proc", name, "environ").read_bytes():
                found[Path("/proc", name, "cmdline").read_text().replace("\0", " ")[:60]] += 1
    return found


if __name__ == "__main__":
    sys.exit(main())
