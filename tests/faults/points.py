"""Send SIGKILL at every named point, in child processes and in the supervisor (`workers/system/failpoints.py`).

Nothing is lost, nothing ends twice, and the fleet continues.

First the fleet runs a mix of jobs and fleet operations for a few seconds, and records which points
it reaches (`--tour 0`: only the core points are tested). Then each point kills the next process that
reaches it, repeatedly, while producers continue. The supervisor replaces a dead child process, and a
new supervisor replaces a dead one. If no process reaches a point, the campaign provokes it: HUP
replaces the child processes, TERM drains the supervisor.

Checked at the end: each acknowledged job has finished once; a transactional job has written its row
exactly once if it completed, and not otherwise; every counted attempt is in the history; each flow
has ended and enqueued its callback once; no process is left; each core point was reached and has
killed.

You can end a run at any time with TERM or Ctrl-C. It is then judged by the kills so far. Runs add up
in docs/project/fault-campaigns.md.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.faults import ledger
from tests.support.audit import Audit
from tests.support.figures import Report, machine
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, Herd
from tests.support.points import Points
from tests.support.processes import become_reaper, members, wait_all_gone
from tests.support.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 40),
    ("fault:sleep", {"seconds": 0.005}, 20),
    ("fault:sleep", {"seconds": 0.15}, 5),
    ("fault:flaky", {}, 15),
    ("fault:effect", {}, 20),
]
FLAGS = (
    "--poll",
    "1s",
    "--lease",
    "3s",
    "--respawn-initial",
    "10ms",
    "--respawn-max",
    "100ms",
    "--drain-timeout",
    "5s",
)
CORE = frozenset(
    {
        "child.born", "child.forked", "child.clean", "child.reporting", "child.leaving", "register_child.sent", "register_child.done",
        "claim_jobs.before", "claim_jobs.sent", "claim_jobs.done", "settle_completed.before", "settle_completed.sent", "settle_completed.done",
        "settle_members.sent", "settle_members.done", "mark_upstreams.before", "mark_upstreams.sent", "mark_upstreams.done",
        "resolve_ends.before", "resolve_ends.sent", "resolve_ends.done",
        "settle_jobs.sent", "job.announced", "job.started", "job.ended", "job.entered", "transaction.begun", "transaction.settled", "transaction.committed",
        "parent:forked", "parent:reaped", "parent:register_supervisor.sent", "parent:register_supervisor.done", "parent:listen_jobs.sent",
        "parent:renew_lease.sent", "parent:terminate_child_sessions.before", "parent:terminate_child_sessions.done", "parent:settle_jobs.sent", "parent:requeue_child.sent",
        "parent:requeue_child.done", "parent:unregister_supervisor.sent", "parent:draining", "parent:leaving",
    }
)  # fmt: skip
EFFECTS = "CREATE TABLE audit.effects (job bigint NOT NULL, attempt int NOT NULL)"
"""Deliberately without a key, so that a second write of the same attempt is visible."""
WRONG = """
SELECT h.id, h.state, count(e.job) FROM jobherd.history h LEFT JOIN audit.effects e ON e.job = h.id WHERE h.kind = 'fault:effect'
 GROUP BY 1, 2 HAVING count(e.job) <> CASE h.state WHEN 'completed' THEN 1 ELSE 0 END"""
FLOW = """
SELECT jobherd.enqueue('fault:effect', '{}', jsonb_build_object('after', jsonb_build_array(jobherd.start_flow('points', '[
    {"node": "many", "kind": "fault:quick", "payloads": ["{}", "{}", "{}"]},
    {"node": "one", "kind": "fault:quick"},
    {"node": "last", "kind": "fault:quick", "after": ["one"]},
    {"node": "callback", "kind": "fault:effect", "on": "done"}]')), 'when', 'ended'))"""
"""A flow with a callback, and a job outside the flow that waits for its end."""
UNENDED = """
SELECT f.id, f.state, count(h.id) FROM jobherd.flows f LEFT JOIN jobherd.edges e ON e.upstream = f.id AND e.flow = f.id
  LEFT JOIN jobherd.history h ON h.id = e.downstream GROUP BY 1, 2 HAVING f.state = 'open' OR count(h.id) <> 1"""
STIRRED = 0.7
"""Seconds after which the campaign provokes a point that was not reached."""
DEATH, RELOAD, LEAVING, QUIET, JOIN = 0, 1, 5, 6, 7
"""Actions of `Ranch.stir`, by number; the last two only for the points that need them."""
QUIET_FOR = 0.5
"""Seconds without new jobs, in which the workers finish the present ones."""
NEEDS = {
    "child.born": DEATH,
    "child.clean": DEATH,
    "claim_job.before": QUIET,  # A claim of one job, by a worker that was idle.
    "claim_job.done": QUIET,
    "claim_job.sent": QUIET,
    "child.leaving": RELOAD,
    "register_child.done": DEATH,
    "mark_upstreams.before": JOIN,
    "mark_upstreams.done": JOIN,
    "mark_upstreams.sent": JOIN,
    "resolve_ends.before": JOIN,
    "resolve_ends.done": JOIN,
    "resolve_ends.sent": JOIN,
    "settle_members.done": JOIN,
    "settle_members.sent": JOIN,
    "parent:draining": LEAVING,
    "parent:terminate_child_sessions.before": DEATH,
    "parent:terminate_child_sessions.done": DEATH,
    "parent:forked": DEATH,
    "parent:unregister_supervisor.sent": LEAVING,
    "parent:leaving": LEAVING,
    "parent:reaped": DEATH,
    "parent:requeue_child.done": DEATH,
    "parent:requeue_child.sent": DEATH,
    "parent:settle_jobs.sent": DEATH,
}
"""Actions for the points that no process reaches while it only runs jobs.

They run as soon as there is a worker. All other points get time to be reached without an action.
"""
NEVER = 12.0
TRIES = 2


class Ranch:
    """Runs one supervisor at a time, and starts a new one when it is dead."""

    def __init__(self, dsn: str, points: Points, workers: int, producer: Producer) -> None:
        self._dsn, self._points, self._workers, self._producer = dsn, points, workers, producer
        self.herds = 0
        self.herd = self._begin()

    def _begin(self) -> Herd:
        self.herds += 1
        return Herd(self._dsn, WORK, *FLAGS, workers=self._workers, wait=False, env=self._points.environment)

    def replace(self) -> None:
        """Wait until the supervisor and all its processes are gone, then start a new supervisor."""
        self.herd.process.wait(LIMIT)
        wait_all_gone(members(self.herd.pid))
        with suppress(Exception):
            self.herd.__exit__(None)
        self.herd = self._begin()

    def stir(self, number: int) -> None:
        """Provoke points that running jobs does not reach.

        A worker is killed, the supervisor replaces its child processes or drains, no jobs arrive for
        a while, or a flow is enqueued.
        """
        if number == QUIET:
            self._producer.rest(QUIET_FOR)
            return
        if number == JOIN:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute(FLOW)
            return
        if not self.herd.worker_pids():
            return  # HUP or TERM would kill a supervisor that has just started and installed no signal handlers yet.
        with suppress(ProcessLookupError):
            match number % 6:
                case 1 | 3:  # RELOAD
                    self.herd.signal(signal.SIGHUP)
                case 5:  # LEAVING
                    self.herd.signal(signal.SIGTERM)
                case _:  # DEATH
                    for pid in self.herd.worker_pids()[:1]:
                        os.kill(pid, signal.SIGKILL)

    def tend(self) -> None:
        """If the supervisor has exited, start a new one."""
        if self.herd.process.poll() is not None:
            self.replace()


def tour(ranch: Ranch, points: Points, audit: Audit, seconds: float) -> set[str]:
    """Let the fleet run jobs and handle commands; return every point that was reached."""
    points.watch()
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        time.sleep(seconds / 8)
        jobs = audit.run("SELECT id FROM jobherd.ready ORDER BY id DESC LIMIT 1")
        for (job,) in jobs:
            audit.run("SELECT jobherd.cancel(%s)", job)
        ranch.stir(number % QUIET)
        number += 1
        ranch.tend()
    (points.folder / "seen").unlink()
    return points.seen()


def kill_at(name: str, ranch: Ranch, points: Points) -> bool:
    """Kill the next process that reaches the point; return whether a process reached it."""
    token = points.arm(name, "kill")
    begun, stirred, needs = time.monotonic(), 0, NEEDS.get(name)
    while not (pid := points.taken(token)):
        now = time.monotonic()
        if now - begun > (LIMIT if name in CORE else NEVER):
            token.unlink(missing_ok=True)
            return points.taken(token) != 0
        if needs is not None and ranch.herd.worker_pids():
            ranch.stir(needs)
            needs = None
        if now - begun > STIRRED * (stirred + 1):
            ranch.stir(NEEDS[name] if NEEDS.get(name) in (QUIET, JOIN) else stirred % QUIET)
            stirred += 1
        ranch.tend()
        time.sleep(0.003)
    wait_all_gone({pid})
    if pid == ranch.herd.pid:
        ranch.replace()
    return True


def turns(names: list[str], times: int, parents: int, killed: Mapping[str, int]) -> Iterator[str]:
    """Yield the points round by round, so that each kill meets what every other one leaves behind.

    A point outside the core that did not kill in the first two rounds is skipped from then on.
    """
    begun = time.monotonic()
    for number in range(max(times, parents)):
        for name in names:
            if number < (parents if name.startswith("parent:") else times) and (
                number < TRIES or killed[name] or name in CORE
            ):
                yield name
        print(
            f"  round {number + 1}: {sum(killed.values())} kills after {time.monotonic() - begun:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def main() -> int:
    given = arguments(__doc__, times=100, parents=100, workers=2, rate=120.0, tour=12.0, only="")
    # --tour 0: only the core points. --only a,b: only these points.
    report = Report(
        f"points: SIGKILL at every named point, {given.times} times in children, {given.parents} in the parent",
        given.seed,
    )
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: stopped.append(which))
    become_reaper()
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        with Herd(dsn, WORK, workers=1):
            pass  # Registers the kinds.
        audit = Audit(dsn)
        audit.run(EFFECTS)
        points = Points(Path(folder, "points"))
        with Producer(
            dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS, most=150
        ) as producer:
            ranch = Ranch(dsn, points, given.workers, producer)
            core = CORE if not given.only else frozenset(given.only.split(","))
            names = sorted(core | (tour(ranch, points, audit, given.tour) if given.tour and not given.only else set()))
            begun = time.monotonic()
            killed = dict.fromkeys(names, 0)
            for name in turns(names, given.times, given.parents, killed):
                if stopped:
                    break
                killed[name] += kill_at(name, ranch, points)
            elapsed = time.monotonic() - begun
            acknowledged = producer.stop()
        ranch.tend()
        over = audit.wait_all_over()
        code = ranch.herd.stop()
        left = members(ranch.herd.pid)
        ranch.herd.__exit__(None)
        report.fact(
            "points",
            f"{len(names)}, {sum(killed.values())} kills in {elapsed:.0f} s, {ranch.herds} supervisors, {len(acknowledged)} jobs",
        )
        never = sorted(name for name, times in killed.items() if not times)
        report.fact("not reached again, and so never killed at", ", ".join(set(never) - core) or "none")
        if not stopped:
            asked = {name for name in core & CORE if (given.parents if name.startswith("parent:") else given.times)}
            report.holds(
                "a process was killed at each point of the core",
                not asked & set(never),
                sorted(asked & set(never)) or "",
            )
        report.holds("all jobs are finished", over)
        report.holds("no process is left", not left, left or "")
        report.holds("the last supervisor exited with 0", code == 0, code)
        audit.check(report, acknowledged)
        unended = audit.run(UNENDED)
        report.holds("each flow has ended, and its callback ran once", not unended, unended[:5] if unended else "")
        wrong = audit.run(WRONG)
        report.holds(
            "writes of a transactional job exist once if it completed, otherwise not",
            not wrong,
            wrong[:5] if wrong else "",
        )
        audit.close()
        ledger.note(
            "points",
            seed=given.seed,
            seconds=elapsed,
            machine=machine(dsn),
            kills=killed,
            jobs=len(acknowledged),
            broken=report.broken,
        )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
