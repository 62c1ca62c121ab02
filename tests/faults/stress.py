"""Put the supervisor under stress.

Thousands of forks, storms of signals, a system without free files and processes, a log that no
process reads.

    python -m tests.faults.stress forks --times 100000
        workers that run one job each and are then replaced; no two draw the same random numbers
    python -m tests.faults.stress kills --times 10000
        child processes that are killed, idle and busy
    python -m tests.faults.stress signals --times 100000
        TTIN, TTOU, HUP, USR1, CHLD in any order to the supervisor, and SIGKILL to child processes
    python -m tests.faults.stress storm --times 100000
        CHLD, WINCH, URG, a thousand a second to each of supervisor, workers and maintenance process:
        every wait is interrupted
    python -m tests.faults.stress pipes --times 5000
        status pipes that are full, a log that no process reads
    python -m tests.faults.stress outputs --times 3
        a job that writes a gigabyte to its streams, without a line
    python -m tests.faults.stress refusals --times 50
        EMFILE and EAGAIN, by the limits of the process

Each campaign samples the supervisor from outside: descriptors, memory, zombies, and how late its loop
was. The rows go to .bench/stress-NAME.csv. What must hold does not depend on the machine. The
lateness of the loop does, so it is only printed. You can end `forks` and `kills` at any time with
TERM or Ctrl-C. They are then judged by what was done so far.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.support.figures import Report
from tests.support.ground import ground
from tests.support.herd import LIMIT, ROOT, Herd

if TYPE_CHECKING:
    from collections.abc import Callable

WORK = Path(__file__).with_name("work.py")
FIELDS = (
    "at",
    "done",
    "descriptors",
    "rss_kb",
    "pss_kb",
    "private_kb",
    "zombies",
    "threads",
    "turns",
    "late",
    "worst_ms",
    "dropped",
)
SLACK_KB = 3000
"""Most growth of the supervisor's memory after a tenth of a campaign.

It allows for the allocator's arenas, not for a leak.
"""


class Watch:
    """Samples a supervisor process, writes the samples to a file, and judges them at the end."""

    def __init__(self, herd: Herd, name: str) -> None:
        self.herd = herd
        self.rows: list[dict[str, float]] = []
        folder = ROOT / ".bench"
        folder.mkdir(exist_ok=True)
        self.path = folder / f"stress-{name}.csv"
        self.deaths = 0
        self._since = time.monotonic()

    def look(self, done: int) -> dict[str, float]:
        """Take a sample. On USR1 the supervisor logs the figures of its loop."""
        pid, mark = self.herd.pid, self.herd.mark()
        self.herd.signal(signal.SIGUSR1)
        said = self.herd.wait_event(lambda event: "the loop: " in event.message, since=mark).message
        turns, late, worst, dropped = re.search(r"(\d+) turns, (\d+) .* worst ([\d.]+) ms; (\d+) lines", said).groups()
        rollup = dict(re.findall(r"^(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        row = {
            "at": round(time.monotonic() - self._since, 3),
            "done": done,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "rss_kb": int(rollup["Rss"]),
            "pss_kb": int(rollup["Pss"]),
            "private_kb": int(rollup["Private_Clean"]) + int(rollup["Private_Dirty"]),
            "zombies": sum(_state(child) == "Z" for child in children),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "turns": int(turns),
            "late": int(late),
            "worst_ms": float(worst),
            "dropped": int(dropped),
        }
        self.rows.append(row)
        self.deaths += sum("cause" in event.record for event in self.herd.forget())
        return row

    def judge(self, report: Report) -> None:
        """Report the samples and check the invariants, once the last dead child processes are replaced."""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            row = self.look(int(self.rows[-1]["done"]))
            if row["descriptors"] <= self.rows[0]["descriptors"] and not row["zombies"]:
                break
            time.sleep(0.2)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows)
        early, last = self.rows[len(self.rows) // 10], self.rows[-1]
        report.fact("rows", f"{len(self.rows)} in {self.path.relative_to(ROOT)}")
        for name in ("descriptors", "rss_kb", "pss_kb", "private_kb"):
            report.fact(name, f"{early[name]:g} after {early['done']:g}, {last[name]:g} after {last['done']:g}")
        report.fact(
            "the loop", f"{last['turns']:g} turns, {last['late']:g} more than 50 ms late, worst {last['worst_ms']:g} ms"
        )
        report.fact("lines of the log dropped", f"{last['dropped']:g}")
        report.holds(
            "no descriptor is left behind", last["descriptors"] <= self.rows[0]["descriptors"], last["descriptors"]
        )
        grown = last["rss_kb"] - early["rss_kb"]
        report.holds(
            f"the supervisor's memory has not grown by more than {SLACK_KB} kB", grown <= SLACK_KB, f"{grown:+g} kB"
        )
        report.holds("no zombie is left", last["zombies"] == 0, last["zombies"])
        report.holds("the supervisor has one thread", last["threads"] == 1)


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def forks(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Run jobs each of which makes its worker due for replacement."""
    while watch.deaths < given.times:
        ask(
            "SELECT jobherd.enqueue('fault:wear', '{}') FROM generate_series(1, %s)",
            min(given.times - watch.deaths, 200),
        )
        _wait_empty(ask)
        watch.look(watch.deaths)
    for place, what in enumerate(("random()", "token_hex()", "uuid4()", "uuid1()"), start=1):
        twice = ask(
            "SELECT word, count(*) FROM (SELECT split_part(result #>> '{}', ' ', %s) AS word FROM jobherd.history WHERE kind = 'fault:wear') AS w"
            " GROUP BY 1 HAVING count(*) > 1 OR word = ''",
            place,
        )
        if twice:
            raise AssertionError(f"children have drawn the same {what}: {twice[:5]}")


def outputs(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Run jobs that write more than a gigabyte each, without lines or valid text.

    Only the end of the output is kept, and other jobs run meanwhile.
    """
    for done in range(given.times):
        ask("""SELECT jobherd.enqueue('fault:pours', '{"megabytes": 550}')""")
        ask("SELECT jobherd.enqueue('fault:quick', '{}') FROM generate_series(1, 100)")
        _wait_empty(ask)
        watch.look(done + 1)
    kept = ask("SELECT max(octet_length(output)), count(*) FROM jobherd.logs")
    if kept[0][1] != given.times or not 0 < int(str(kept[0][0])) <= KEPT:
        raise AssertionError(f"of {given.times} outputs the logs keep {kept}")


def kills(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Kill all child processes at any time of their lives, by SIGKILL, SIGSEGV or SIGABRT."""
    done = 0
    while watch.deaths < given.times:  # A process that gets two signals dies once.
        if done % 500 == 0:
            ask("""SELECT jobherd.enqueue('fault:sleep', '{"seconds": 0.002}') FROM generate_series(1, 50)""")
        for pid in herd.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, dice.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
            done += 1
            if done % 100 == 0:
                watch.look(watch.deaths)
        time.sleep(dice.uniform(0, 0.1))
    _wait_empty(ask)


def signals(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Send signals in storms of a thousand: they resize and reload, and every 200th kills a child process."""
    for done in range(0, given.times, 1000):
        ask("SELECT jobherd.enqueue('fault:quick', '{}') FROM generate_series(1, 50)")
        for number in range(1000):
            herd.signal(dice.choice((signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGCHLD)))
            if number % 200 == 0 and (children := herd.children()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(children), signal.SIGKILL)
        herd.signal(signal.SIGHUP)
        herd.signal(signal.SIGTTIN)  # All workers may have been removed.
        _wait_empty(ask)
        watch.look(done + 1000)


def storm(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Send each process a signal without effect about once a millisecond, while jobs run and wait."""
    family = [herd.pid, *herd.children()]
    for done in range(0, given.times, 10_000):
        ask("SELECT jobherd.enqueue('fault:quick', '{}') FROM generate_series(1, 2000)")
        ask("""SELECT jobherd.enqueue('fault:sleep', '{"seconds": 0.05}') FROM generate_series(1, 50)""")
        for _ in range(10_000):
            os.kill(dice.choice(family), dice.choice(MEANINGLESS))
            time.sleep(0.001 / len(family))
        _wait_empty(ask)
        watch.look(done + 10_000)
    if [herd.pid, *herd.children()] != family:
        raise AssertionError(f"the processes are {herd.children()}, and were {family}")
    twice = ask("SELECT id FROM jobherd.history WHERE attempts <> 1 OR crashes <> 0")
    if twice:
        raise AssertionError(f"jobs that have run twice: {twice[:5]}")


def pipes(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Stop the supervisor while child processes report; then let no process read its log."""
    for done in range(0, given.times, 500):
        ask("SELECT jobherd.enqueue('fault:quick', '{}') FROM generate_series(1, 500)")
        herd.signal(signal.SIGSTOP)
        time.sleep(0.3)
        herd.signal(signal.SIGCONT)
        with herd.deaf():
            for _ in range(2000):
                herd.signal(signal.SIGUSR1)
            _wait_empty(ask)
        watch.look(done + 500)


def refusals(
    herd: Herd,
    watch: Watch,
    given: argparse.Namespace,
    dice: random.Random,
    ask: Callable[..., list[tuple[object, ...]]],
) -> None:
    """Kill child processes while the supervisor cannot open a file or fork; then allow both again."""
    for done in range(given.times):
        # For root there is no limit of processes.
        which = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)[done % 2 if os.getuid() else 0]
        old = resource.prlimit(herd.pid, which)
        # No more files than are open: the pipe of a child process needs two.
        resource.prlimit(herd.pid, which, (3 if which == resource.RLIMIT_NOFILE else 1, old[1]))
        mark = herd.mark()
        os.kill(dice.choice(herd.children()), signal.SIGKILL)
        herd.wait_event(lambda event: "rejects another process" in event.message, since=mark)
        resource.prlimit(herd.pid, which, old)
        herd.wait_event(lambda event: event.message.endswith(" is ready"), since=mark)
        ask("SELECT jobherd.enqueue('fault:quick', '{}') FROM generate_series(1, 20)")
        _wait_empty(ask)
        watch.look(done + 1)


KEPT = 4 * 65536
"""Most bytes that a log stores of an output's end.

65,536 are kept, and bytes that are not text are stored as numbers, which need more space.
"""
MEANINGLESS = (signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG)
CAMPAIGNS = {
    "forks": (forks, 5000),
    "kills": (kills, 1000),
    "signals": (signals, 50_000),
    "storm": (storm, 50_000),
    "pipes": (pipes, 5000),
    "outputs": (outputs, 3),
    "refusals": (refusals, 50),
}
FLAGS = {"forks": ("--claim-size", "1")}
DEATHS = {"forks", "kills"}
"""Campaigns that count dead child processes, not the faults."""


def _wait_empty(ask: Callable[..., list[tuple[object, ...]]]) -> None:
    until = time.monotonic() + 10 * LIMIT
    while ask(
        "SELECT 1 FROM jobherd.waiting UNION ALL SELECT 1 FROM jobherd.running UNION ALL SELECT 1 FROM jobherd.scheduled LIMIT 1"
    ):
        if time.monotonic() > until:
            raise TimeoutError("the queue is not drained")
        time.sleep(0.05)


def run(name: str, times: int, *, workers: int = 2, seed: int = 0) -> Report:
    """Run one campaign and return its report."""
    campaign, _ = CAMPAIGNS[name]
    given = argparse.Namespace(times=times)
    if name in DEATHS:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(given, "times", 0))
    report = Report(f"stress {name}: {times} times", seed)
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)

        def ask(statement: str, *parameters: object) -> list[tuple[object, ...]]:
            return connection.execute(statement, parameters).fetchall()

        flags = ("--respawn-initial", "10ms", "--respawn-max", "100ms", *FLAGS.get(name, ()))
        with Herd(dsn, WORK, *flags, workers=workers) as herd:
            herd.wait_event(lambda event: event.message == "maintenance is ready")
            watch = Watch(herd, name)
            watch.look(0)
            campaign(herd, watch, given, random.Random(seed), ask)
            watch.judge(report)
            code = herd.stop()
        report.holds("the supervisor exited with 0", code == 0, code)
        wrong = ask("SELECT state, count(*) FROM jobherd.history WHERE state <> 'completed' GROUP BY 1")
        report.holds("every job was completed", not wrong, wrong or "")
        report.fact("child processes that ended and were replaced", watch.deaths)
        if name in DEATHS:
            report.holds("the requested number of child processes has ended", watch.deaths >= given.times, watch.deaths)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=list(CAMPAIGNS), metavar="NAME", help=f"of {', '.join(CAMPAIGNS)}; default all"
    )
    parser.add_argument("--times", type=int, help="default: some minutes' worth")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    return max(
        [
            run(name, given.times or CAMPAIGNS[name][1], workers=given.workers, seed=given.seed).end()
            for name in given.names
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
