"""Inject network faults, drawn from a seed, between two supervisors and their server.

Each supervisor uses its own proxy, and producers use one of them too. The proxy affects all sessions,
one session, or a session at a named statement:

- connections are reset once a second, three times;
- the session of a supervisor or of one child process becomes silent permanently, in the middle of a
  job, of a claim or of writing an outcome;
- all sessions of a proxy are silent for half a lease, one lease or three leases;
- statements arrive partially or not at all, or their answers are lost after the commit;
- the connections are slow, or transfer one byte per packet.

Nothing is lost, nothing ends twice, nothing is left running, and the same supervisors continue.

Before these faults, the campaign tests one after another:

- how soon a process notices a silent session and reconnects;
- connections that are very slow for longer than two leases: no lease is lost and no job runs twice;
- a supervisor that is silent together with its workers, for each of the three lengths. Jobs record
  outside the database when they run. Two attempts of a job overlap only if a lease was lost, and
  those of an exclusive job never overlap.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.faults.runs import Run, begun_twice, overlaps, read_runs
from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, Herd, is_ready
from tests.support.network import Network
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 50),
    ("fault:sleep", {"seconds": 0.02}, 30),
    ("fault:sleep", {"seconds": 0.5}, 15),
    ("fault:burn", {"seconds": 0.05}, 5),
]
PARENT, CHILDREN, WORKERS = "jobherd:supervisor:*", "jobherd:*:*:*", "jobherd:worker:*"


def strike(dice: random.Random, network: Network, lease: float) -> str:
    """Inject one fault into the network; return its name."""
    what = dice.choice(
        ["reset", "reset", "silent parent", "silent child", "word", "word", "word", "black hole", "slow", "crumbs"]
    )
    match what:
        case "reset":
            for _ in range(3):
                network.cut()
                time.sleep(1.0)
        case "silent parent":
            network.stall(PARENT)
            time.sleep(dice.uniform(1, 3))
        case "silent child":
            names = [name for name in network.names() if name.startswith(("jobherd:worker:", "jobherd:maintenance:"))]
            if names:
                network.stall(dice.choice(names))
            time.sleep(dice.uniform(0.5, 2))
        case "word":
            word, where, action = (
                dice.choice(["claim_", "settle_", "enqueue"]),
                dice.choice(["before", "torn", "answered"]),
                "cut",
            )
            if word != "enqueue" and dice.random() < 0.5:
                action = "stall"
            network.arm("*" if word == "enqueue" else WORKERS, word, where=where, action=action)
            time.sleep(dice.uniform(0.2, 1))
            what = f"{action} {where} {word}"
        case "black hole":
            length = dice.choice([0.5, 1.0, 3.0])
            network.blackhole()
            time.sleep(length * lease)
            network.heal()
            what = f"silence of {length:g} leases"
        case "slow":
            network.slow(latency=0.2, bandwidth=10_000)
            time.sleep(3)
            network.heal()
        case "crumbs":
            network.slow(latency=0.001, crumbs=True)
            time.sleep(2)
            network.heal()
    return what


LENGTHS = (0.5, 1.0, 3.0)
"""Lengths of a silence, in leases."""
CRAWLS = {
    "200 ms each way": {"latency": 0.2},
    "10 kB/s": {"bandwidth": 10_000.0},
    "200 ms and 10 kB/s": {"latency": 0.2, "bandwidth": 10_000.0},
    "a byte a packet": {"latency": 0.001, "crumbs": True},
}
CRAWL = 2.5
"""Leases for which the connections are very slow."""
CRAWL_LEASE = 10.0
"""Seconds.

On the slowest of these connections a session needs 3 s until it renews the lease for the first time,
and 4 s more until its statements are prepared.
"""
DEFAULT_LEASE = 15.0
NOTICED = 13.0
"""Seconds within which a process must notice a silent session and reconnect."""


def half_open(report: Report, network: Network, rounds: int, dice: random.Random) -> None:
    """Measure how soon a supervisor notices that its session is silent and reconnects.

    The silence begins at a random time between two renewals of the default lease.
    """
    with Herd(network.dsn, WORK, workers=1) as herd:
        found = []
        for _ in range(rounds):
            time.sleep(dice.uniform(1, 1 + DEFAULT_LEASE / 3))
            since, began = herd.mark(), time.monotonic()
            network.stall(PARENT)
            back = herd.wait_event(lambda event: event.message == "the database is there", since=since)
            found.append((back.at - began) * 1000)
    report.spread("silent LISTEN session made again", found, aims={"max": NOTICED * 1000})


class Hosts:
    """Two supervisors, each behind its own network, with jobs that record their runs."""

    def __init__(
        self, report: Report, audit: Audit, herds: list[Herd], networks: list[Network], notes: Path, lease: float
    ) -> None:
        self.report, self.audit, self.herds, self.networks, self.notes, self.lease = (
            report,
            audit,
            herds,
            networks,
            notes,
            lease,
        )

    def lost(self) -> int:
        return sum(len(herd.messages("lease was lost")) for herd in self.herds)

    def enqueue(self, kind: str, seconds: float) -> int:
        return int(
            self.audit.run(
                "SELECT jobherd.enqueue(%s, %s)", kind, json.dumps({"path": str(self.notes), "seconds": seconds})
            )[0][0]
        )

    def crawl(self) -> list[int]:
        """Slow all connections in each of the ways, one after another; return the jobs."""
        jobs, lost = [], self.lost()
        for what, how in CRAWLS.items():
            for network in self.networks:
                network.slow(**how)
                network.cut()  # Without it, the sessions would start on fast connections.
            until = time.monotonic() + CRAWL * self.lease
            while time.monotonic() < until:
                jobs.append(self.enqueue("fault:noted", 0.05))
                time.sleep(0.2)
            over = self.audit.wait_all_over()
            self.report.holds(f"{what}: every job finished on the slow connection", over)
            for network in self.networks:
                network.heal()
            self.report.holds(f"{what}: no lease was lost in {CRAWL:g} leases", self.lost() == lost, self.lost() - lost)
        twice = begun_twice([run for run in read_runs(self.notes) if run.job in set(jobs)])
        self.report.holds(
            f"none of {len(jobs)} jobs ran twice on a slow connection", not twice, twice[:10] if twice else ""
        )
        given_up = [
            message
            for herd in self.herds
            for word in ("does not receive its own", "no answer to", "no message from")
            for message in herd.messages(word)
        ]
        self.report.holds("no session was given up on a slow connection", not given_up, given_up[:4])
        return jobs

    def fall_silent(self) -> list[int]:
        """Silence the supervisor that runs the job, with all its child processes; return the jobs.

        Once for each length and each kind: an ordinary job and an exclusive one.
        """
        jobs: dict[int, str] = {}
        for length in LENGTHS:
            for kind in ("fault:noted", "fault:noted-alone"):
                job, before = self.enqueue(kind, max(1.5, length) * self.lease), self.lost()
                jobs[job] = kind
                number = self._of(self._first_run(job).pid)
                self.networks[number].blackhole()
                time.sleep(length * self.lease)
                self.networks[number].heal()
                self.report.holds(
                    f"{length:g} leases of silence under {kind}: the job finished", self.audit.wait_all_over()
                )
                if length < 1:
                    self.report.holds("  and no lease was lost", self.lost() == before, self.lost() - before)
        runs = [run for run in read_runs(self.notes) if run.job in jobs]
        both = overlaps(runs)
        unexplained = [pair for pair in both if not self._lost_since(pair[0].pid, pair[1].began)]
        self.report.fact(
            "jobs in a silence, their attempts, pairs of overlapping attempts", [len(jobs), len(runs), len(both)]
        )
        self.report.holds("two attempts of a job overlapped only if a lease was lost", not unexplained, unexplained[:3])
        alone = [pair for pair in both if jobs[pair[0].job] == "fault:noted-alone"]
        self.report.holds("attempts of an exclusive job never overlapped", not alone, alone[:3])
        self.report.holds("attempts of another job overlapped: the check is effective", len(both) > len(alone))
        return list(jobs)

    def _first_run(self, job: int) -> Run:
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            if found := [run for run in read_runs(self.notes) if run.job == job]:
                return found[0]
            time.sleep(0.02)
        raise TimeoutError(f"job {job} did not begin")

    def _of(self, pid: int) -> int:
        """The number of this worker's supervisor."""
        return next(
            number
            for number, herd in enumerate(self.herds)
            if any(event.pid == pid for event in herd.events if is_ready(event))
        )

    def _lost_since(self, pid: int, at: float) -> bool:
        """Whether this worker's supervisor logged after this time that its lease was lost."""
        return any(event.at >= at and "lease was lost" in event.message for event in self.herds[self._of(pid)].events)


def main() -> int:
    given = arguments(__doc__, faults=60, workers=2, rate=15.0, lease=4.0, rounds=5)
    dice = random.Random(given.seed)
    report = Report(
        f"network: {given.faults} faults between two supervisors and their server (lease {given.lease:g} s)", given.seed
    )
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        done: Counter[str] = Counter()
        flags = ("--lease", f"{given.lease:g}s", "--db-retry-initial", "0.1s")
        notes = Path(folder, "notes")
        notes.touch()
        with Network(dsn) as network, Network(dsn) as second:
            half_open(report, network, given.rounds, dice)
            patient = ("--lease", f"{CRAWL_LEASE:g}s", "--db-retry-initial", "0.1s")
            with (
                Herd(network.dsn, WORK, *patient, workers=given.workers) as one,
                Herd(second.dsn, WORK, *patient, workers=given.workers) as two,
            ):
                told = Hosts(report, audit, [one, two], [network, second], notes, CRAWL_LEASE).crawl()
        with Network(dsn) as network, Network(dsn) as second:
            through = make_conninfo(network.dsn, application_name="producer")
            with (
                Herd(network.dsn, WORK, *flags, workers=given.workers) as one,
                Herd(second.dsn, WORK, *flags, workers=given.workers) as two,
            ):
                hosts = Hosts(report, audit, [one, two], [network, second], notes, given.lease)
                told += hosts.fall_silent()
                with Producer(
                    through, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS
                ) as producer:
                    for _ in range(given.faults):
                        done[strike(dice, dice.choice([network, network, second]), given.lease)] += 1
                    network.heal()
                    second.heal()
                    acknowledged = told + producer.stop()
                over = audit.wait_all_over(300)
                lost = hosts.lost()
                codes = [one.stop(), two.stop()]
                noise = [event.line for event in (*one.events, *two.events) if "Traceback" in event.line]
            hits = network.count("hit") + second.count("hit")
        report.fact("faults", dict(sorted(done.items())))
        report.fact("sessions broken or silenced at a message", hits)
        report.fact("leases lost, as required in the longer silences", lost)
        report.holds("every job finished", over)
        report.holds("both supervisors survived and exited with 0", codes == [0, 0], codes)
        report.holds("no traceback in the log", not noise, noise[:2] if noise else "")
        bad = audit.run("SELECT id, state, crashes FROM jobherd.history WHERE state <> 'completed' OR crashes > 0")
        report.holds("every job completed, and no silence counted as a crash", not bad, bad[:5] if bad else "")
        audit.check(report, acknowledged)
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
