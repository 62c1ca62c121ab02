"""Kill remote workers, gateways and supervisors with SIGKILL in turn, and drain supervisors, under load.

Jobs run through two gateways. Each supervisor has a gateway, and every worker has the addresses of
both. A killed worker is started again, a supervisor replaces its killed gateway, and a supervisor is
started again on the same port. A drained supervisor must exit with 0, without a signal to its
gateway; with --drains 0 the campaign only kills. With --away N, the database is stopped for N seconds
after half of the turns: no worker may lose its session, because each gets a whole lease once the
database is back. Ctrl-C ends the turns early, and the turns so far are checked.

Checked: every acknowledged job has finished once, every counted attempt is in the history, no job
and no session is left when the workers have exited, and no gateway has ended because of its own
error.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.support.audit import Audit
from tests.support.checkout import import_path
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, ROOT, Herd
from tests.support.ports import spare_port
from tests.support.processes import become_reaper
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
OPTIONS = {"queue": "remote", "max_attempts": 100}
KINDS = [("remote:quick", {}, 70, OPTIONS), ("remote:slow", {}, 30, OPTIONS)]
FLAGS = (
    *("--queues", "local", "--lease", "3s", "--poll", "1s", "--drain-timeout", "10s"),
    *("--respawn-initial", "10ms", "--respawn-max", "100ms"),
    *("--gateway-lease", "5s", "--gateway-linger", "500ms", "--gateway-task-lease", "30s"),
)
DONE = "SELECT count(*) FROM jobherd.history"
SESSIONS = "SELECT count(*) FROM jobherd.supervisors WHERE via IS NOT NULL"
VICTIMS = ("worker", "gateway", "supervisor", "drain")


def work(addresses: str, name: str) -> None:
    """Run jobs until TERM; this is the remote worker's process."""
    from jobherd.remote import Task, Worker  # noqa: PLC0415  # Only that process may start its threads.

    dice = random.Random()

    def handler(task: Task) -> int:
        time.sleep(dice.uniform(0, 0.2 if task.kind == "remote:slow" else 0.005))
        return task.id

    Worker(addresses, worker_id=name, kinds=[kind for kind, *_ in KINDS], concurrency=8).run(handler)


class Workers:
    """The remote workers' processes."""

    def __init__(self, count: int, addresses: str, log: Path) -> None:
        self._addresses = addresses
        self._log = log.open("ab")
        self._processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.gateway", "--work", self._addresses, f"w{number}"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": import_path()},
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )

    def kill(self, dice: random.Random) -> None:
        """Kill a random worker, and start it again."""
        number = dice.randrange(len(self._processes))
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._start(number)

    def ended(self) -> list[int]:
        """The exit codes of workers that have exited without a request."""
        return [one.returncode for one in self._processes if one.poll() is not None]

    def stop(self) -> list[int]:
        """Terminate the workers, and return their exit codes."""
        for one in self._processes:
            one.terminate()
        try:
            return [one.wait(LIMIT) for one in self._processes]
        finally:
            for one in self._processes:
                one.kill()
                one.wait()
            self._log.close()


def sessions(audit: Audit) -> list[int]:
    return [row[0] for row in audit.run("SELECT id FROM jobherd.supervisors WHERE via IS NOT NULL ORDER BY id")]


def gateway_of(herd: Herd) -> int:
    """The pid of this supervisor's latest gateway."""
    herd.wait_event(lambda event: event.message == "gateway is ready")
    return max(
        (event for event in list(herd.events) if event.message == "gateway is ready"), key=lambda event: event.at
    ).pid


def main() -> int:
    given = arguments(__doc__, kills=60, workers=4, rate=150.0, gap=0.7, away=0.0, drains=1)
    dice = random.Random(given.seed)
    become_reaper()
    victims = VICTIMS if given.drains else VICTIMS[:-1]
    report = Report(
        f"gateway: {given.kills} turns of kill -9 and drains; {given.away:g} s without database", given.seed
    )
    addresses = [f"127.0.0.1:{spare_port()}" for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder, ground() as (cluster, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        log = Path(folder, "workers.log")

        def start(place: int) -> Herd:
            return Herd(dsn, WORK, "--gateway", addresses[place], *FLAGS, workers=1, wait=False)

        herds = [start(place) for place in range(2)]
        past: list[Herd] = []
        for herd in herds:
            herd.wait_event(lambda event: event.message.startswith("gateway on "))
        workers = Workers(given.workers, ",".join(addresses), log)
        killed: Counter[str] = Counter()
        drained: list[int | None] = []
        kept: tuple[list[int], list[int]] = [], []
        try:
            with Producer(
                dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS, most=1000
            ) as producer:
                with suppress(KeyboardInterrupt):  # The turns so far are checked.
                    for number in range(given.kills):
                        if given.away and number == given.kills // 2:
                            until = time.monotonic() + LIMIT
                            while len(before := sessions(audit)) != given.workers and time.monotonic() < until:
                                time.sleep(
                                    0.2
                                )  # Every worker has a session again, and the sessions of dead workers have ended.
                            cluster.stop("fast")
                            time.sleep(given.away)
                            cluster.start()
                            audit.reconnect()
                            done = audit.run(DONE)[0][0]
                            until = time.monotonic() + LIMIT
                            while audit.run(DONE)[0][0] < done + 100 and time.monotonic() < until:
                                time.sleep(0.2)
                            kept = before, sessions(audit)
                        time.sleep(dice.uniform(0.3, 1.7) * given.gap)
                        victim, place = victims[number % len(victims)], dice.randrange(2)
                        if victim == "worker":
                            workers.kill(dice)
                        elif victim == "gateway":
                            with suppress(ProcessLookupError):
                                os.kill(gateway_of(herds[place]), signal.SIGKILL)
                        else:
                            herds[place].signal(signal.SIGTERM if victim == "drain" else signal.SIGKILL)
                            code = herds[place].wait()
                            if victim == "drain":
                                drained.append(code)
                            past.append(herds[place])
                            herds[place] = start(place)
                            herds[place].wait_event(lambda event: event.message.startswith("gateway on "))
                        killed[victim] += 1
                        if number % 100 == 99:
                            print(f"{number + 1} turns of {given.kills}", file=sys.stderr, flush=True)
                acknowledged = producer.stop()
            over = audit.wait_all_over()
            ended = workers.ended()
        finally:
            codes = workers.stop()
        until = time.monotonic() + 30
        while (left := audit.run(SESSIONS)[0][0]) and time.monotonic() < until:
            time.sleep(0.1)
        children = audit.run("SELECT count(*) FROM jobherd.children WHERE kind = 'remote'")[0][0]
        exits = [herd.stop() for herd in herds]
        events = [event for herd in (*past, *herds) for event in herd.events]
        said = log.read_text()
        report.fact("kills", f"{dict(killed)} under {len(acknowledged):,} jobs")
        states = dict(audit.run("SELECT state, count(*) FROM jobherd.history GROUP BY 1"))
        attempts = dict(audit.run("SELECT attempts, count(*) FROM jobherd.history GROUP BY 1 ORDER BY 1"))
        report.fact("jobs by attempts", str(attempts))
        report.holds("every job finished", over)
        report.holds("every job completed", set(states) <= {"completed"}, states)
        audit.check(report, acknowledged)
        report.holds("no session is left", not left and not children, (left, children))
        report.holds("no worker exited early, and all exited on request", not ended and not any(codes), (ended, codes))
        report.holds("the supervisors exited with 0", exits == [0, 0], exits)
        report.holds("each drained gateway exited with 0", not any(drained), drained)
        report.holds("every session has survived the outage of the database", kept[0] == kept[1], kept)
        bad = [
            place
            for place, event in enumerate(events)
            if "Traceback" in event.line or event.record.get("level") == "critical"
        ]
        wrong = ["\n".join(event.line for event in events[place - 3 : place + 40]) for place in bad]
        wrong += [said[-2000:]] if "Traceback" in said else []
        report.holds("no traceback in a log", not wrong, wrong[:1] if wrong else "")
        for herd in (*past, *herds):
            herd.__exit__(None)
        audit.close()
    return report.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
