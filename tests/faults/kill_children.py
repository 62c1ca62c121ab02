"""Kill busy workers with SIGKILL, many times, under load.

Measured from each kill:

- until the worker's job can be claimed again: a listener receives the notification, which
  PostgreSQL sends after the commit, or a worker claims the job, whichever is first;
- until the slot has a worker that is READY.

Each killed worker had been READY for a second. The backoff of a worker that dies repeatedly during
its start is not measured here.

Checked: no acknowledged job is lost, no job ends twice, and the job's history or the log explains
every death. The metrics agree with the database: they count each death once and each attempt that
ended once, and the outcomes that were not written are at most as many as the kills.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import psycopg

from jobherd import sql
from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd, is_ready
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 40),
    ("fault:sleep", {"seconds": 0.005}, 30),
    ("fault:sleep", {"seconds": 0.05}, 15),
    ("fault:burn", {"seconds": 0.02}, 10),
    ("fault:sleep", {"seconds": 0.5}, 5),
]
BUSY = """
SELECT c.pid, c.id FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child
 WHERE r.claimed_at < clock_timestamp() - interval '1 millisecond' AND c.started_at < clock_timestamp() - interval '1 second'
   AND c.id <> ALL (%s)
 ORDER BY r.jobs[1].crashes, random() LIMIT 1"""

DEATHS = """
SELECT split_part(ran_on, '/', 2)::int, extract(epoch FROM finished_at)::double precision AS at, job, post_mortem ->> 'signal', token
  FROM jobherd.attempts WHERE post_mortem IS NOT NULL
 UNION ALL
SELECT split_part(ran_on, '/', 2)::int, extract(epoch FROM finished_at)::double precision, id, post_mortem ->> 'signal', token
  FROM jobherd.history WHERE post_mortem IS NOT NULL
 ORDER BY at"""
SOON = 60.0
"""Seconds within which a death is recorded and logged.

The kernel does not reuse a pid within this time.
"""


class Kill(NamedTuple):
    """One SIGKILL: its time, the time at which the kernel had ended the process, and the worker.

    No process can notice the death before `gone`.
    """

    at: float
    gone: float
    pid: int
    child: int


class Death(NamedTuple):
    """The record of a death in the history; `at` is on this process's monotonic clock."""

    pid: int
    at: float
    job: int
    signal: str
    token: int


class Listener:
    """Records the time of each notification on a channel, in a thread."""

    def __init__(self, dsn: str, channel: str) -> None:
        self.heard: list[tuple[float, str]] = []
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"LISTEN {channel}")
        self._connection.execute(sql.load("wake/enable_notify"))  # Without it, a busy fleet sends no notifications.
        self._stop = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop:
            for note in self._connection.notifies(timeout=0.5, stop_after=1):
                self.heard.append((time.monotonic(), note.payload))

    def stop(self) -> list[tuple[float, str]]:
        self._stop = True
        self._thread.join()
        self._connection.close()
        return self.heard


def scrape(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode()).splitlines()


def total(metrics: list[str], name: str, label: str = "") -> int:
    """The sum of a metric over all its labels, or over those that contain `label`."""
    lines = (line.partition("{") for line in metrics if line.startswith(name))
    return sum(int(float(rest.rpartition(" ")[2])) for _, _, rest in lines if label in rest)


def main() -> int:
    given = arguments(__doc__, kills=200, workers=3, batch=1, rate=60.0, gap=0.4)
    dice = random.Random(given.seed)
    report = Report(
        f"kill_children: kill -9 of a busy child, {given.kills} times, {given.workers} workers, batches of {given.batch}",
        given.seed,
    )
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        herd = Herd(
            dsn, WORK, "--claim-size", str(given.batch), "--http", "127.0.0.1:0", workers=given.workers, wait=False
        )
        with herd:
            herd.wait_ready()
            address = (
                herd.wait_event(lambda event: "metrics and health on" in event.message)
                .message.split(" on ")[1]
                .split()[0]
            )
            parent = herd.pid
            listener = Listener(dsn, "audit_back")
            kills: list[Kill] = []
            offset = time.time() - time.monotonic()  # The server and this process use the same host's clocks.
            start = time.monotonic()
            with Producer(
                dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS, most=200
            ) as producer:
                while len(kills) < given.kills and time.monotonic() - start < given.kills * 3 + 60:
                    time.sleep(dice.uniform(0.3, 1.7) * given.gap)
                    # Without the exclusion, a worker that its supervisor has not reaped yet could be
                    # killed again and counted twice.
                    rows = audit.run(BUSY, [kill.child for kill in kills[-100:]])
                    if not rows:
                        continue
                    try:
                        pidfd = os.pidfd_open(rows[0][0])
                    except ProcessLookupError:
                        continue
                    at = time.monotonic()
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [], 10)
                    kills.append(Kill(at, time.monotonic(), *rows[0]))
                    os.close(pidfd)
                elapsed = time.monotonic() - start
                acknowledged = producer.stop()
            over = audit.wait_all_over()
            steps: dict[int, list[tuple[int, str, int | None, float]]] = {}
            for number, job, step, token, when in audit.run(
                "SELECT number, job, step, token, extract(epoch FROM at)::double precision FROM audit.steps ORDER BY number"
            ):
                steps.setdefault(job, []).append((number, step, token, when - offset))
            heard = {int(text): when for when, text in listener.stop()}
            metrics = scrape(address)
            same_parent = herd.process.poll() is None and herd.pid == parent
            code = herd.stop()
            events = list(herd.events)
        deaths: dict[int, list[Death]] = {}
        for death in (Death(pid, when - offset, *rest) for pid, when, *rest in audit.run(DEATHS)):
            deaths.setdefault(death.pid, []).append(death)
        told = [event for event in events if re.match(r"Process \d+", event.message)]

        def claimable(job: int, token: int) -> float | None:
            """When the job could be claimed after the worker with this claim died; None if the job waits for its backoff."""
            # Only steps after this claim count: a claim that the server was executing at the kill can
            # still commit after it.
            died = next(number for number, step, claim, _ in steps[job] if step == "claimed" and claim == token)
            after = [each for each in steps[job] if each[0] > died]
            back = next((each for each in after if each[1] in ("ready", "scheduled")), None)
            if back is None or back[1] == "scheduled":
                return None
            again = next((when for _, step, claim, when in after if step == "claimed" and claim != token), float("inf"))
            return min(heard.get(back[0], float("inf")), again)

        back_times: list[float] = []
        ours: list[float] = []
        delayed = explained = idle = 0
        unexplained = []
        ready = [event for event in events if is_ready(event)]
        returns = []
        for kill in kills:
            # The kernel reuses pids within an hour of kills: the first death after the kill is the
            # one that it caused.
            death = next((death for death in deaths.get(kill.pid, ()) if kill.at < death.at < kill.at + SOON), None)
            slot = next(
                (event.message.split()[1] for event in reversed(ready) if event.pid == kill.pid and event.at < kill.at),
                None,
            )
            event = next((each for each in ready if each.at > kill.at and each.message.split()[1] == slot), None)
            if event is not None:
                returns.append((event.at - kill.at) * 1000)
            if death is not None:
                explained += 1
                back = claimable(death.job, death.token)
                if back is None:
                    delayed += 1  # A job that crashed before waits for its backoff, as designed.
                else:
                    back_times.append((back - kill.at) * 1000)
                    ours.append((back - kill.gone) * 1000)
                continue
            # The status board showed no running job: the worker was between two jobs, or had not
            # started a claimed one. The log must contain the death.
            idle += 1
            if not any(event.pid == kill.pid and kill.at < event.at < kill.at + SOON for event in told):
                unexplained.append(kill.pid)

        report.fact(
            "kills",
            f"{len(kills)} in {elapsed:.0f} s under {len(acknowledged)} jobs; {explained} while a job ran, {idle} between or before jobs, "
            f"{delayed} jobs had crashed before and waited out their back-off",
        )
        report.spread("kill to claimable again", back_times, aims={"p50": 10, "p99": 250})
        report.spread(
            "  the kernel's part: kill to the process's end", [(kill.gone - kill.at) * 1000 for kill in kills]
        )
        report.spread("  Jobherd's part: the process's end to claimable", ours)
        report.spread("kill to the replacement worker READY", returns, aims={"max": 1000})
        report.holds("all kills were done", len(kills) == given.kills, len(kills))
        report.holds("the supervisor survived and exited with 0", same_parent and code == 0, code)
        report.holds("every slot has a worker again", len(returns) == len(kills), f"{len(returns)} of {len(kills)}")
        report.holds(
            "the history or the log explains every death", not unexplained, unexplained[:5] if unexplained else ""
        )
        wrong = [death for each in deaths.values() for death in each if death.signal != "SIGKILL"]
        report.holds("every recorded death names SIGKILL", not wrong, wrong[:5] if wrong else "")
        report.holds("no traceback in the log", not any("Traceback" in event.line for event in events))
        report.holds("every job finished", over)
        audit.check(report, acknowledged)
        died, ended = (
            total(metrics, "jobherd_child_deaths_total"),
            total(metrics, "jobherd_worker_jobs_processed_total", 'outcome="ok"'),
        )
        completed = audit.run("SELECT count(*) FROM jobherd.history WHERE state = 'completed'")[0][0]
        report.holds("the metrics count every death once", died == len(kills), f"{died:,}")
        report.holds(
            "the metrics count every successful attempt, recorded or not",
            0 <= ended - completed <= len(kills),
            f"{ended:,} for {completed:,} that completed",
        )
        bad = audit.run("SELECT id, state, error FROM jobherd.history WHERE state <> 'completed'")
        report.holds("every job completed", not bad, bad[:5] if bad else "")
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
