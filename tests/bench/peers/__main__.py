"""Measure other job queues on PostgreSQL against Jobherd.

Drains and starts run on one server, with two processes of each queue, in turn.

On the first run, pip and npm install the queues in a separate environment below `.bench/`. Later runs
use it as it is. Each queue runs at its best: in the batches that its documentation offers, and after
a VACUUM ANALYZE, which Jobherd does not get. The time of a drain is from the first job's start, so
that no import counts, until every job in the database has finished. Jobherd drains twice: keeping
only failures, as most of the others do, and with full history, in which each job can be found
afterwards. Some of them also drain with their default settings.

The processor time of a job is that of workers and server: the additional time of the larger drain,
divided by its additional jobs. On a busy machine it is more meaningful than the rates, because a queue
with more processes gets more processor time.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from jobherd.supervisor.version import VERSION
from tests.bench.cpu import processor_seconds
from tests.support.figures import Report, at
from tests.support.ground import SETTINGS, arguments
from tests.support.herd import ROOT
from tests.support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
HOME = ROOT / ".bench" / "peers"
PYTHON = HOME / "python" / "bin" / "python"
NODE = HOME / "node"
IN_BIN = NODE / "node_modules" / ".bin"
IN_PYTHON = {
    "pgqueuer": ("pgqueuer[asyncpg]", "uvloop"),
    "procrastinate": ("procrastinate", "psycopg[binary]", "uvloop"),
}
IN_NODE = {"graphile": ("graphile-worker",), "pgboss": ("pg-boss",)}
LIMIT = 180.0
"""Seconds after which a drain counts as never ending."""
GAP = 0.02
GLANCE = 0.02


@dataclass(frozen=True)
class Peer:
    """How to run one of the queues.

    Args:
        left: A query for whether any job has not finished.
        most: The most jobs that it drains in acceptable time.
    """

    name: str
    package: str
    command: tuple[str, ...]
    left: str
    aim: float | None = None
    """Target ratio of Jobherd's rate, with only failures kept, to this queue's rate."""
    processes: int = 2
    most: int = 10**9
    analyze: bool = True
    starts: bool = True
    """Whether starts are measured, in addition to drains."""
    settings: str = "drain"
    """The adapter's name for the settings. With `default` the queue uses its default settings."""


HISTORY: float = 1.3
"""Target ratio of Jobherd's rate, with full history, to the fastest peer's rate."""
OURS = (sys.executable, str(HERE / "jobherd_peer.py"))
LEFT = "SELECT EXISTS (SELECT FROM jobherd.ready) OR EXISTS (SELECT FROM jobherd.running)"


PEERS = (
    Peer("Jobherd", "", (*OURS, "history"), LEFT, processes=1, analyze=False),  # One supervisor has two workers.
    Peer("Jobherd, failures kept", "", (*OURS, "failures"), LEFT, processes=1, analyze=False, starts=False),
    Peer(
        "Graphile Worker",
        "graphile-worker",
        (str(IN_BIN / "node"), str(HERE / "node_peers.mjs"), "graphile"),
        "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)",
        aim=2,
    ),
    Peer(
        "pg-boss",
        "pg-boss",
        (str(IN_BIN / "node"), str(HERE / "node_peers.mjs"), "pgboss"),
        "SELECT EXISTS (SELECT FROM pgboss.job WHERE name IN ('noop', 'stamp') AND state < 'completed')",
        aim=2,
    ),
    Peer(
        "PgQueuer",
        "pgqueuer",
        (str(PYTHON), str(HERE / "pgqueuer_peer.py")),
        "SELECT EXISTS (SELECT FROM pgqueuer)",
        aim=4,
    ),
    Peer(
        "Procrastinate",
        "procrastinate",
        (str(PYTHON), str(HERE / "procrastinate_peer.py")),
        "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        aim=4,
        most=5000,
    ),
)
BY_DEFAULT = (
    Peer("Jobherd", "", (*OURS, "history"), LEFT, processes=1, analyze=False, starts=False, settings="default"),
    *(
        replace(peer, starts=False, settings="default", most=5000)
        for peer in PEERS
        if peer.name in {"Graphile Worker", "PgQueuer"}
    ),
)
"""pg-boss is not among them: by default its workers fetch one job in two seconds."""


def install() -> None:
    """Make the two environments if they do not exist. To get newer versions, remove `.bench`."""
    if not (HOME / "done").exists():
        shutil.rmtree(HOME, ignore_errors=True)
        NODE.mkdir(parents=True)
        quiet = {"check": True, "stdout": subprocess.DEVNULL}
        subprocess.run([sys.executable, "-m", "venv", HOME / "python"], **quiet)
        subprocess.run(
            [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *sum(IN_PYTHON.values(), ())],
            **quiet,
        )
        (NODE / "package.json").write_text('{"private": true}\n')
        # npm installs the newest versions that its own Node.js can run, so the installed Node.js must run it.
        path = f"{IN_BIN}{os.pathsep}{os.environ['PATH']}"
        for packages in (("node@22",), sum(IN_NODE.values(), ())):
            subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages],
                cwd=NODE,
                env=os.environ | {"PATH": path},
                **quiet,
            )
        (HOME / "done").touch()


def version(peer: Peer) -> str:
    if not peer.package:
        return VERSION
    if peer.command[0].endswith("node"):
        return json.loads((NODE / "node_modules" / peer.package / "package.json").read_text())["version"]
    folder = next((HOME / "python" / "lib").glob("python3*/site-packages"))
    return next(iter(importlib.metadata.distributions(name=peer.package, path=[str(folder)]))).version


def fewer(peer: Peer, jobs: int) -> str:
    """Return a text with the number of jobs that the peer drained, if it was less than `jobs`."""
    return f" (of {peer.most:,})" if peer.most < jobs else ""


class Stand:
    """A peer with its own database."""

    def __init__(self, peer: Peer, dsn: str, folder: Path, server: int) -> None:
        self.peer, self._folder, self._server = peer, folder, server
        given = conninfo_to_dict(dsn)
        url = f"postgresql://{given['user']}@/{given['dbname']}?host={quote(str(given['host']), safe='')}&port={given['port']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBHERD_", "PG"))}
        path = os.pathsep.join(map(str, (HERE,) if peer.package else (ROOT, HERE)))
        self._environment = kept | {
            "PEER_DSN": url,
            "PEER_NOTES": str(folder),
            "PYTHONPATH": path,
            "NODE_NO_WARNINGS": "1",
        }
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.run("setup")

    def run(self, *words: object) -> str:
        done = subprocess.run(
            [*self.peer.command, *map(str, words)],
            cwd=NODE,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.peer.name} {words[0]}: {done.stderr[-800:]}")
        return done.stdout

    @contextlib.contextmanager
    def working(self, purpose: str) -> Iterator[list[int]]:
        """Start the peer's workers, each in its own process group, and kill the groups at the end of the block."""
        log = (self._folder / "log").open("ab")
        words = [*self.peer.command, "work", purpose]
        started = [
            subprocess.Popen(
                words,
                cwd=NODE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for _ in range(self.peer.processes)
        ]
        try:
            yield [process.pid for process in started]
            if any(process.poll() is not None for process in started):
                raise RuntimeError(
                    f"a worker of {self.peer.name} has ended: {(self._folder / 'log').read_text()[-800:]}"
                )
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()

    def is_busy(self) -> bool:
        row = self.connection.execute(self.peer.left).fetchone()
        assert row is not None
        return bool(row[0])

    def drain(self, jobs: int) -> tuple[float, float]:
        """Return jobs per second, and the seconds of processor time, including the start of the workers."""
        for file in self._folder.glob("first.*"):
            file.unlink()
        self.run("load", jobs)
        if self.peer.analyze:
            self.connection.execute("VACUUM ANALYZE")
        before = processor_seconds([self._server])
        with self.working(self.peer.settings) as workers:
            self._wait(lambda: not self.is_busy(), f"drain {jobs} jobs")
            end = time.time()
            spent = processor_seconds([self._server, *workers]) - before
        return jobs / (end - min(float(file.read_text()) for file in self._folder.glob("first.*"))), spent

    def starts(self, jobs: int) -> list[float]:
        """Milliseconds from just before the enqueue call to the first statement of the job, on an idle system."""
        with self.working("start"):
            time.sleep(5)  # The workers are ready by then; some need one or two polls.
            sent = dict(json.loads(self.run("offer", jobs, GAP)))
            self._wait(lambda: not self.is_busy(), f"start {jobs} jobs")
        stamps: dict[int, float] = {}
        for file in self._folder.glob("stamps.*"):
            stamps |= {
                int(number): float(when) for number, when in (line.split() for line in file.read_text().splitlines())
            }
            file.unlink()
        assert stamps.keys() == sent.keys(), f"{len(stamps)} of {len(sent)} jobs started"
        return [(stamps[number] - before) * 1000 for number, before in sent.items()][jobs // 10 :]  # warm

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + LIMIT
        while not true():
            if time.monotonic() > until:
                raise RuntimeError(f"{self.peer.name} did not {what}: {(self._folder / 'log').read_text()[-800:]}")
            time.sleep(GLANCE)


def main() -> int:
    given = arguments(__doc__, jobs=20_000, many=100_000, starts=100, runs=5)
    install()
    report = Report("peers: drains and starts beside other queues on PostgreSQL, two processes each")
    rates: dict[int, dict[Peer, list[float]]] = {jobs: defaultdict(list) for jobs in (given.jobs, given.many)}
    spent: dict[Peer, list[float]] = defaultdict(list)
    starts: dict[Peer, list[float]] = defaultdict(list)
    tails: dict[Peer, list[float]] = defaultdict(list)
    everyone = PEERS + BY_DEFAULT
    with Cluster(SETTINGS) as cluster, cluster.database() as first:
        report.on(first)
        for number in range(given.runs):
            for peer in everyone if number % 2 else everyone[::-1]:
                seconds: list[float] = []
                for jobs, found in rates.items():
                    if jobs == given.many and peer.most < jobs:
                        continue
                    with cluster.database() as dsn, tempfile.TemporaryDirectory(prefix="jobherd-peer-") as folder:
                        stand = Stand(peer, dsn, Path(folder), cluster.pid)
                        rate, used = stand.drain(min(jobs, peer.most))
                        found[peer].append(rate)
                        seconds.append(used)
                        if jobs == given.jobs and peer.starts:
                            times = stand.starts(given.starts)
                            starts[peer].append(at(times, 0.5))
                            tails[peer].append(at(times, 0.99))
                        stand.connection.close()
                if len(seconds) > 1:
                    spent[peer].append(1e6 * (seconds[1] - seconds[0]) / (given.many - given.jobs))
                print(
                    f"  run {number + 1}: {peer.name} {[round(found[peer][-1]) for found in rates.values() if found[peer]]}",
                    file=sys.stderr,
                )
    ours, lean, *others = PEERS
    for jobs, found in rates.items():
        many = jobs == given.many
        fastest = max((peer for peer in others if found[peer]), key=lambda peer: statistics.median(found[peer]))
        report.figure(f"drain of {jobs:,}, full history, Jobherd {version(ours)}", found[ours], unit="jobs/s")
        label = f"drain of {jobs:,}, full history, against the fastest, {fastest.name} {version(fastest)}"
        report.figure(label, found[ours], found[fastest], unit="jobs/s", aim=HISTORY if many else None, at_least=True)
        for peer in others:
            if found[peer]:
                label = f"drain of {jobs:,}, failures kept, against {peer.name} {version(peer)}{fewer(peer, jobs)}"
                report.figure(
                    label, found[lean], found[peer], unit="jobs/s", aim=peer.aim if many else None, at_least=True
                )
    for one, kept in ((ours, "full history"), (lean, "failures kept")):
        for peer in others:
            if spent[peer]:
                label = f"processor time of a job, {kept}, against {peer.name} {version(peer)}"
                report.figure(label, spent[one], spent[peer], unit="us")
    mine, *theirs = BY_DEFAULT
    for jobs, found in rates.items():
        for peer in (*theirs, *others):
            if found[peer]:
                how = "default settings, against" if peer in theirs else "default settings against the best of"
                label = f"drain of {jobs:,}, full history, {how} {peer.name} {version(peer)}{fewer(peer, jobs)}"
                report.figure(label, found[mine], found[peer], unit="jobs/s")
    for name, times in (("p50", starts), ("p99", tails)):
        for peer in others:
            report.figure(
                f"start {name}, Jobherd against {peer.name} {version(peer)}", times[ours], times[peer], unit="ms"
            )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
