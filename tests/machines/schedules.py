"""Drives schedules in a real PostgreSQL: maintenance processes decide, users edit, workers finish jobs.

Each query of a process and each of its decisions is a separate move, so an edit, a pause or another
process comes between. All stored times are moved back to let time pass, so no move waits.

These invariants hold after each move. Each tick of a schedule, from when it was made or its timing was last
edited, is in `ticks` exactly once up to the last decided tick: in its own row, or in a row for several ticks
with the right number. A job of a schedule has exactly one tick, and a tick with a job has that job. With any
overlap but `allow`, at most one job of a tick is unfinished. After a process has handled all due ticks, no
tick is due.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobherd.handlers._policy.timing import zone_version
from jobherd.workers.maintenance.schedules import Schedules

if TYPE_CHECKING:
    from tests.support.queue import Queue

EVERY = (60.0, 600.0, 86400.0)
PASSES = (5.0, 65.0, 900.0, 2 * 86400.0)
OVERLAPS = ("allow", "skip", "queue", "replace")
MISFIRES = ("one", "skip", "all")
TABLES = "ready parked scheduled running history cancels schedules ticks children supervisors".split()
MOST = 6
"""Most schedules at a time."""

PASS = """
UPDATE jobherd.schedules SET
    next_at = next_at - d, last_at = last_at - d, plan_from = plan_from - d, gap_from = gap_from - d,
    asked = ARRAY(SELECT a - d FROM unnest(asked) AS a),
    options = jsonb_set(options, '{starts_at}', to_jsonb((options ->> 'starts_at')::timestamptz - d)),
    held = jsonb_set(held, '{at}', to_jsonb((held ->> 'at')::timestamptz - d)),
    backfill = backfill || jsonb_build_object('from', (backfill ->> 'from')::timestamptz - d,
                                              'to', (backfill ->> 'to')::timestamptz - d)
  FROM (SELECT make_interval(secs => %s) AS d) AS passed"""
# In two steps: in one, a tick would collide with the key of another tick that has not moved yet.
PASS_TICKS = """
UPDATE jobherd.ticks SET at = at - interval '10000000 hours', since = since - interval '10000000 hours';
UPDATE jobherd.ticks SET at = at + interval '10000000 hours' - d, since = since + interval '10000000 hours' - d
  FROM (SELECT make_interval(secs => {})::interval AS d) AS passed"""
INSTANTS = """
SELECT s.name, extract(epoch FROM t.at - a.anchor)::float8, extract(epoch FROM t.since - a.anchor)::float8, t.decided, t.job, t.missed
  FROM jobherd.schedules s CROSS JOIN LATERAL (SELECT (s.options ->> 'starts_at')::timestamptz AS anchor) AS a
  JOIN jobherd.ticks t ON t.schedule = s.name WHERE t.decided <> 'manual'"""
REACHED = """
SELECT s.name, extract(epoch FROM s.last_at - (s.options ->> 'starts_at')::timestamptz)::float8 FROM jobherd.schedules s"""
LIVE = """
SELECT id, (extras).schedule ->> 'name' FROM jobherd.waiting UNION ALL SELECT id, (extras).schedule ->> 'name' FROM jobherd.scheduled
UNION ALL SELECT j.id, (j.extras).schedule ->> 'name' FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j"""
DUE = """
SELECT count(*) FROM jobherd.schedules
 WHERE asked <> '{}' OR (paused_at IS NULL AND (next_at <= now() OR plan_from IS NOT NULL))"""


class Session:
    """The part of a maintenance process's session that schedules use."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def run(self, name: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self._queue.connection.execute(self._queue.text(name), parameters)
        return cursor.fetchall() if cursor.description is not None else []


@dataclass
class Plan:
    """The model of a schedule. covered: seconds after its anchor, from which on each tick must exist."""

    name: str
    every: float
    overlap: str
    covered: float


class Model:
    """The schedules under test and their invariants."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        queue.run("TRUNCATE " + ", ".join(f"jobherd.{table}" for table in TABLES) + " CASCADE")
        self.session = Session(queue)
        self.child = queue.supervisor().child()
        self.claims: list[tuple[int | None, int]] = []
        self.plans: list[Plan] = []
        self.looks: list[tuple[list[Any], list[Any]]] = []
        self.made = 0
        self.seen: Counter[str] = Counter()

    def any(self, n: int) -> Plan | None:
        return self.plans[n % len(self.plans)] if self.plans else None

    def process(self, n: int) -> Schedules:
        return Schedules(self.session, f"test/{n}")  # type: ignore[arg-type]

    # -- users

    def move_add(self, n: int) -> None:
        if len(self.plans) >= MOST:
            return
        self.made += 1
        name, every = f"s{self.made}", EVERY[n % 3]
        overlap, misfire = OVERLAPS[n // 3 % 4], MISFIRES[n // 12 % 3]
        self.queue.run(
            "SELECT jobherd.schedule(%s, 'a:b', every => %s, options => jsonb_build_object('starts_at', now() - interval '3 days',"
            " 'overlap', %s::text, 'misfire', %s::text, 'misfire_most', 3))",
            name, str(every), overlap, misfire,
        )  # fmt: skip
        self.plans.append(Plan(name, every, overlap, self.planned_from(name)))

    def planned_from(self, name: str) -> float:
        return self.queue.run(
            "SELECT extract(epoch FROM plan_from - (options ->> 'starts_at')::timestamptz)::float8 FROM jobherd.schedules WHERE name = %s",
            name,
        )[0][0]

    def move_edit(self, n: int) -> None:
        if plan := self.any(n):
            self.queue.run("SELECT jobherd.schedule(%s, payload => jsonb_build_object('n', %s::int))", plan.name, n)

    def move_time(self, n: int) -> None:
        if plan := self.any(n):
            plan.every = EVERY[n // 7 % 3]
            said = self.queue.run("SELECT jobherd.schedule(%s, every => %s)", plan.name, str(plan.every))
            if said == [("changed",)]:
                plan.covered = self.planned_from(plan.name)

    def move_pause(self, n: int) -> None:
        if plan := self.any(n):
            self.queue.run("SELECT jobherd.pause_schedule(%s)", plan.name)

    def move_resume(self, n: int) -> None:
        if plan := self.any(n):
            self.queue.run("SELECT jobherd.resume_schedule(%s)", plan.name)

    def move_ask(self, n: int) -> None:
        if plan := self.any(n):
            self.queue.run("SELECT jobherd.run_schedule(%s)", plan.name)

    def move_backfill(self, n: int) -> None:
        if plan := self.any(n):
            self.queue.run(
                "SELECT jobherd.backfill_schedule(name, now() - interval '1 h', now(), 3) FROM jobherd.schedules"
                " WHERE name = %s AND backfill IS NULL",
                plan.name,
            )

    def move_delete(self, n: int) -> None:
        if plan := self.any(n):
            assert self.queue.run("SELECT jobherd.unschedule(%s)", plan.name) == [(True,)]
            self.plans.remove(plan)

    # -- time, processes, workers

    def move_pass(self, n: int) -> None:
        self.queue.run(PASS, PASSES[n % 4])
        self.queue.run(PASS_TICKS.format(PASSES[n % 4]))
        self.looks = []  # their decisions have times from before the move

    def move_run(self, n: int) -> None:
        process = self.process(n)
        for _ in range(4):  # plans, then the ticks that are due by them
            process.run()
            if process.due_at > time.monotonic():
                break
        assert self.queue.run(DUE) == [(0,)], "ticks are due after a process has handled all of them"

    def move_look(self, n: int) -> None:
        rows = self.session.run("schedule/find_due_schedules", {"most": 200})
        plans, decisions, _ = self.process(n)._decide(rows)
        self.looks.append((plans, decisions))

    def move_send(self, n: int) -> None:
        """A slow process sends its decisions."""
        if not self.looks:
            return
        plans, decisions = self.looks.pop(n % len(self.looks))
        wanted = {"plans": json.dumps(plans), "planned_with": zone_version(), "by": "slow"}
        sent = len(self.session.run("schedule/plan_schedules", wanted))
        sent += len(self.session.run("schedule/tick_schedules", {"decisions": json.dumps(decisions), "by": "slow"}))
        self.seen["late decisions"] += sent
        self.seen["outdated decisions"] += len(plans) + len(decisions) - sent

    def move_claim(self, n: int) -> None:
        self.claims += [(job.token, job.id) for job in self.child.claim(n % 3 + 1)]

    def move_settle(self, n: int) -> None:
        if self.claims:
            token, job = self.claims.pop(n % len(self.claims))
            outcome = "failed" if n % 5 == 0 else "ok"
            common = {"code": "NO_PAPER", "error": "no paper"} if outcome == "failed" else {}
            assert self.child.settle(token, [job], outcome, keep=30, **common) == [job]

    # -- invariants

    def check(self) -> None:
        live = dict(self.queue.run(LIVE))
        over = {row[0] for row in self.queue.run("SELECT id FROM jobherd.history")}
        rows = self.queue.run("SELECT job, decided FROM jobherd.ticks WHERE job IS NOT NULL")
        decided = dict(rows)
        assert len(decided) == len(rows), "two ticks have the same job"
        assert decided.keys() == live.keys() | over, "a job without its tick, or a tick without its job"
        reached = dict(self.queue.run(REACHED))
        found: dict[str, list[Any]] = {plan.name: [] for plan in self.plans}
        for name, *row in self.queue.run(INSTANTS):
            found[name].append(row)
            self.seen[row[2]] += 1
        for plan in self.plans:
            self.covers(plan, reached[plan.name], found[plan.name])
            ran = [job for job, name in live.items() if name == plan.name and decided[job] == "ran"]
            assert plan.overlap == "allow" or len(ran) <= 1, f"{plan.name} ({plan.overlap}) overlaps: jobs {ran}"

    @staticmethod
    def covers(plan: Plan, reached: float | None, rows: list[Any]) -> None:
        once: Counter[int] = Counter()
        again = set()
        for at, since, decided, job, missed in rows:
            if at <= plan.covered:
                continue
            last = round(at / plan.every)
            # A row for several ticks may begin at the next tick of the timing before the edit.
            first = last if since is None else math.ceil((since - 0.001) / plan.every)
            assert abs(last * plan.every - at) < 0.001, f"{plan.name} has a tick off its grid"
            if decided == "backfilled":
                again |= set(range(first, last + 1))
                continue
            assert job is not None or since is None or last - first == missed, (
                f"{plan.name}: wrong number of ticks in a row: {missed + 1}"
            )
            once.update(range(first, last + 1))
        assert not once or max(once.values()) == 1, f"{plan.name} has a tick twice"
        latest = -1 if reached is None else int((reached + 0.001) // plan.every)
        wanted = set(range(int(plan.covered // plan.every) + 1, latest + 1))
        missing = wanted - once.keys() - again
        assert not missing, f"{plan.name} every {plan.every:g} s lacks {len(missing)} of {len(wanted)} ticks"
        assert max(once, default=latest) <= latest, f"{plan.name} has ticks after the last decided one"


Move = tuple[str, int]
WEIGHTS = {
    "add": 4, "edit": 3, "time": 2, "pause": 2, "resume": 4, "ask": 3, "backfill": 1, "delete": 1, "pass": 10, "run": 8, "look": 6, "send": 6,
    "claim": 5, "settle": 6,
}  # fmt: skip
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


def play(queue: Queue, moves: list[Move]) -> Counter[str]:
    """Make these moves, check after each, and return counts of events.

    Raises AssertionError if an invariant is broken.
    """
    model = Model(queue)
    for name, n in moves:
        model.seen["moves"] += 1
        getattr(model, f"move_{name}")(n)
        model.check()
    return model.seen
