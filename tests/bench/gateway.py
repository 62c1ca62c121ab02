"""Measure how fast remote workers get jobs, durable, against local workers in the same run.

A full cycle is: claim, send, decode, run a handler that does nothing in a client process, report,
settle, acknowledge. Each round drains the same jobs with local workers, and through one gateway
with the same number of client processes, at each number of tasks in a Ready. The jobs are loaded into
a paused queue. The time is from its release to the last job's end. Then the same clients exchange the
same messages with a process that does nothing else (`tests.bench.gateway_floor`): gRPC and Python
cannot be faster here.

Then eight workers with StreamJobs and unary reports drain 2,000 jobs, whose transactions the server
counts. At last, jobs are enqueued on an idle system, for a local and a remote worker in turn. The
figures are from just before the enqueue call to the handler's first statement, and to the arrival of
the task.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.bench.dispatch import REST, Counts
from tests.bench.jobs import drain
from tests.support.checkout import import_path
from tests.support.figures import Report, at
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import ROOT, Herd
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Cluster

WORK = Path(__file__).with_name("work.py")
ROUNDS = {500: (2, 1.0), 100: (4, 0.5), 8: (16, 0.2), 1: (64, 0.05)}
"""By tasks in a Ready: slots of each client, and the share of the jobs that is drained in this way."""
AIMS = {500: 0.6}
"""Lowest ratio to the local drain."""
GAP = 0.02
"""Seconds between two jobs on an idle system."""
PAYLOAD = '{"n": 1, "user_id": 1234567, "action": "send_welcome_email", "locale": "en_GB", "ref": "ab12cd34ef56"}'
"""The same payload that `tests.bench.jobs` loads."""
WARM_UP = 30
STRETCHES = 10
"""Parts of the run that are compared one by one, so that the ratio has an interval."""


@contextlib.contextmanager
def clients(count: int, module: str, *words: object) -> Iterator[None]:
    """Run `count` client processes until the end of the block."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", module, *map(str, words)],
                    cwd=ROOT,
                    env={"PYTHONPATH": import_path()},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(count)
        ]
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        yield
        for each in started:
            assert each.stdin is not None
            each.stdin.close()


@contextlib.contextmanager
def serving(own: str, *words: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """Run a supervisor with a gateway. Yield the gateway's address and a connection to the database."""
    where = f"127.0.0.1:{spare_port()}"
    with (
        Herd(own, WORK, "--gateway", where, *words, workers=1) as herd,
        psycopg.connect(own, autocommit=True) as connection,
    ):
        herd.wait_event(lambda event: event.message == "gateway is ready")
        yield where, connection


def messages_alone(count: int, slots: int, tasks: int, jobs: int) -> float:
    """Return the jobs per second of the same messages without a gateway, after a run that is not counted."""
    where = f"127.0.0.1:{spare_port()}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.gateway_floor", where, PAYLOAD],
        cwd=ROOT,
        env={"PYTHONPATH": import_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with clients(count, "tests.bench.gateway_client", where, slots, tasks):
            took = 0.0
            for each in (jobs // 4, jobs):
                server.stdin.write(f"{each}\n")
                server.stdin.flush()
                took = float(server.stdout.readline())
        server.stdin.close()
    return jobs / took


def smoke(report: Report, cluster: Cluster, jobs: int, runs: int) -> None:
    """Drain a few jobs with eight workers that use one call each to take and to report, and count transactions."""
    rates: list[float] = []
    each: list[float] = []
    lost = 0
    with (
        fresh(cluster) as own,
        serving(own, "--queues", "local") as (where, connection),
        clients(1, "tests.bench.gateway_calls", where, 8, 100),
    ):
        counts = Counts(cluster, own)
        drain(connection, jobs)  # Warm up: plans are made.
        for _ in range(runs):
            time.sleep(REST)
            before = counts.read()
            rates.append(drain(connection, jobs))
            time.sleep(REST)
            after = counts.read()
            each.append((after[0] - before[0]) / jobs)
            lost += after[1] - before[1]
        counts.close()
    report.holds(f"no transaction was rolled back while 8 workers with unary reports drained {jobs} jobs", lost == 0)
    report.figure("8 workers with unary reports, end to end", rates, unit="jobs/s", aim=1223, at_least=True)
    report.figure("transactions of a job, 8 workers with unary reports", each, unit="", aim=0.2)


def latency(report: Report, cluster: Cluster, jobs: int) -> None:
    """Enqueue for an idle remote worker and an idle local worker in turn."""
    sent: dict[int, float] = {}
    turns: dict[str, list[int]] = {"remote": [], "default": []}
    with (
        fresh(cluster) as own,
        serving(own, "--queues", "default", "--poll", "5m") as (where, connection),
        clients(1, "tests.bench.gateway_calls", where, 1, 1),
    ):
        for number in range(jobs + WARM_UP):
            for queue, found in turns.items():
                before = time.time()
                row = connection.execute(
                    "SELECT jobherd.enqueue('bench:stamp', '{}', jsonb_build_object('queue', %s::text))",
                    [queue],
                    prepare=True,
                ).fetchone()
                assert row is not None
                if number >= WARM_UP:
                    sent[row[0]] = before
                    found.append(row[0])
                time.sleep(GAP)
        time.sleep(REST)
        stamps = dict(
            connection.execute(
                "SELECT id, result::text::double precision FROM jobherd.history WHERE state = 'completed'"
            ).fetchall()
        )
    remote, local = ([(stamps[job] - sent[job]) * 1000 for job in found if job in stamps] for found in turns.values())
    report.holds(f"all {jobs} jobs of each have started", len(remote) == len(local) == jobs, (len(remote), len(local)))
    report.spread("start latency, remote worker", remote)
    report.spread("start latency, local worker", local)
    length = max(1, jobs // STRETCHES)
    stretches = [slice(length * number, length * (number + 1)) for number in range(min(STRETCHES, jobs))]
    report.figure(
        "start latency p50, a remote worker against a local one",
        *([at(values[each], 0.5) for each in stretches] for values in (remote, local)),
        unit="ms",
        aim=2.0,
    )


def main() -> int:
    given = arguments(__doc__, jobs=100_000, clients=2, runs=5, few=2000, single=500)
    report = Report(f"gateway: {given.jobs} no-op jobs, {given.clients} client processes or local workers")
    local: list[float] = []
    remote: dict[int, list[float]] = {tasks: [] for tasks in ROUNDS}
    alone: dict[int, list[float]] = {tasks: [] for tasks in ROUNDS}
    with ground() as (cluster, dsn):
        report.on(dsn)
        for _ in range(given.runs if given.jobs else 0):
            with (
                fresh(cluster) as own,
                Herd(own, WORK, "--claim-size", "500", workers=given.clients),
                psycopg.connect(own, autocommit=True) as connection,
            ):
                local.append(drain(connection, given.jobs))
            for tasks, (slots, share) in ROUNDS.items():
                with (
                    fresh(cluster) as own,
                    serving(own, "--queues", "local") as (where, connection),
                    clients(given.clients, "tests.bench.gateway_client", where, slots, tasks),
                ):
                    remote[tasks].append(drain(connection, int(given.jobs * share)))
                alone[tasks].append(messages_alone(given.clients, slots, tasks, int(given.jobs * share)))
        if given.jobs:
            report.figure("local drain in batches of 500", local, unit="jobs/s")
            for tasks, found in remote.items():
                report.figure(
                    f"full cycles through a gateway, {tasks} tasks a Ready, against the local drain",
                    found,
                    local,
                    unit="jobs/s",
                    aim=AIMS.get(tasks),
                    at_least=True,
                )
                report.figure(
                    f"the same, against the messages alone, {tasks} a Ready", found, alone[tasks], unit="jobs/s"
                )
        smoke(report, cluster, given.few, given.runs)
        latency(report, cluster, given.single)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
