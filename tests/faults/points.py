"""A SIGKILL at every named point, in the children and in the parent (`workers/system/failpoints.py`): nothing is lost, nothing ends twice, everything goes on.

First the fleet works for a while under a mix of jobs and orders, and notes which points it reaches
(`--tour 0`: the core alone is gone through); then each of them kills whoever reaches it next, again
and again, while producers go on. A dead child is replaced by its parent, a dead parent by a new
supervisor. A point that is not reached by itself is brought about: children are replaced by HUP,
the supervisor is told to drain.

Checked at the end: what producers were acknowledged is over, once; a transactional job has left its
row exactly once if it was completed and else none; every counted attempt stands in the history; each flow
has ended and called back once; no process is left; each point of the core was reached and has killed.

A run may be ended at any time by TERM or Ctrl-C: it is judged by what was killed until then, and
runs add up in docs/project/fault-campaigns.md.
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
"""Deliberately without a key."""
WRONG = """
SELECT h.id, h.state, count(e.job) FROM jobherd.history h LEFT JOIN audit.effects e ON e.job = h.id WHERE h.kind = 'fault:effect'
 GROUP BY 1, 2 HAVING count(e.job) <> CASE h.state WHEN 'completed' THEN 1 ELSE 0 END"""
FLOW = """
SELECT jobherd.enqueue('fault:effect', '{}', jsonb_build_object('after', jsonb_build_array(jobherd.start_flow('points', '[
    {"node": "many", "kind": "fault:quick", "payloads": ["{}", "{}", "{}"]},
    {"node": "one", "kind": "fault:quick"},
    {"node": "last", "kind": "fault:quick", "after": ["one"]},
    {"node": "callback", "kind": "fault:effect", "on": "done"}]')), 'when', 'ended'))"""
"""A flow with a callback, and a job outside of it that waits for its end."""
UNENDED = """
SELECT f.id, f.state, count(h.id) FROM jobherd.flows f LEFT JOIN jobherd.edges e ON e.upstream = f.id AND e.flow = f.id
  LEFT JOIN jobherd.history h ON h.id = e.downstream GROUP BY 1, 2 HAVING f.state = 'open' OR count(h.id) <> 1"""
STIRRED = 0.7
"""Seconds after which a point is brought about."""
DEATH, RELOAD, LEAVING, QUIET, JOIN = 0, 1, 5, 6, 7
"""What `Ranch.stir` does, by number; the last two only where they are needed."""
QUIET_FOR = 0.5
"""Seconds in which what there is is worked off."""
NEEDS = {
    "child.born": DEATH,
    "child.clean": DEATH,
    "claim_job.before": QUIET,  # of one job, by somebody who has rested
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
"""What brings about those that nobody reaches by working.

Done as soon as there is a worker, where the others are left to come by themselves.
"""
NEVER = 12.0
TRIES = 2


class Ranch:
    """One supervisor at a time, and a new one when it is dead."""

    def __init__(self, dsn: str, points: Points, workers: int, producer: Producer) -> None:
        self._dsn, self._points, self._workers, self._producer = dsn, points, workers, producer
        self.herds = 0
        self.herd = self._begin()

    def _begin(self) -> Herd:
        self.herds += 1
        return Herd(self._dsn, WORK, *FLAGS, workers=self._workers, wait=False, env=self._points.environment)

    def replace(self) -> None:
        """Wait for the end of the one that is, and for all its processes; begin another."""
        self.herd.process.wait(LIMIT)
        wait_all_gone(members(self.herd.pid))
        with suppress(Exception):
            self.herd.__exit__(None)
        self.herd = self._begin()

    def stir(self, number: int) -> None:
        """Bring about what does not come by itself.

        A worker dies, children are replaced, at last the supervisor leaves; or there is nothing to
        do.
        """
        if number == QUIET:
            self._producer.rest(QUIET_FOR)
            return
        if number == JOIN:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute(FLOW)
            return
        if not self.herd.worker_pids():
            return  # a supervisor that has only just begun would die of what it is to obey
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
        """If it has left, begin another."""
        if self.herd.process.poll() is not None:
            self.replace()


def tour(ranch: Ranch, points: Points, audit: Audit, seconds: float) -> set[str]:
    """Let the fleet work and be given orders; return every point that was reached."""
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
    """Kill whoever reaches that point next; return whether anybody did."""
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
    """Round by round, so that what one kill leaves behind meets each of the others.

    What only the tour has reached is given up after two.
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
    # --tour 0: the core alone. --only a,b: these alone.
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
            pass  # makes the kinds known
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
            report.holds("each point of the core has killed", not asked & set(never), sorted(asked & set(never)) or "")
        report.holds("all jobs are over", over)
        report.holds("no process is left", not left, left or "")
        report.holds("the last supervisor left well", code == 0, code)
        audit.check(report, acknowledged)
        unended = audit.run(UNENDED)
        report.holds("each flow has ended, and has called back once", not unended, unended[:5] if unended else "")
        wrong = audit.run(WRONG)
        report.holds(
            "what a transactional job wrote is there once if it was completed, and else not",
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
