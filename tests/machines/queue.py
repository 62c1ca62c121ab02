"""Compares the states of jobs in a real PostgreSQL with a model.

The moves are statements that supervisors and child processes send, one at a time.

The model defines in a page of Python what each statement does to a job. After each move both must have
the same jobs, in the same places, with the same counts. So no job is ever in two places or in none, no
attempt is counted twice or lost, and no write succeeds under a token other than that of the claim: every
settlement is also tried with an old token, by another worker, and twice. Under gates, the model does not
predict which jobs are claimed. It checks that each of them was allowed, and that a claim is empty only if
no job may be claimed. A parked job returns to the queue once its gate is gone. The attempts have as many
rows as the model counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from jobherd.workers.job.row import claimed_jobs
from tests.support.queue import NOTHING, PER_JOB

if TYPE_CHECKING:
    from tests.support.queue import Queue

QUEUES, KINDS = ("a", "b"), ("x:one", "x:two")
OUTCOMES = ("ok", "ok", "ok", "retry", "retry", "failed", "poison", "snoozed", "abandoned", "cancelled", "expired")
LATER = 3600.0
MOST_CRASHES = 3
"""The default for a kind that no worker has declared."""
TERMINAL = {"ok": "completed", "poison": "failed", "failed": "failed", "cancelled": "cancelled", "expired": "expired"}
SERVED: tuple[list[str] | None, ...] = (None, None, ["b", "a"], ["b", "a"], ["b"], ["b", "*"])
TURNS: tuple[list[str] | None, ...] = (None, ["a"], ["b"], ["a", "b"], ["b", "a"])
WANTED = {"completed": {"completed"}, "failed": {"failed", "expired"}, "ended": {*TERMINAL.values()}}
TABLES = (
    "blocked",
    "edges",
    "ends",
    "ready",
    "parked",
    "scheduled",
    "running",
    "history",
    "attempts",
    "logs",
    "children",
    "supervisors",
    "gates",
)


@dataclass
class Job:
    id: int
    queue: str
    kind: str
    priority: int
    most: int | None
    place: str
    """blocked, ready, scheduled, running, a final state, or gone."""
    attempts: int = 0
    crashes: int = 0
    alone: bool = False
    cancelled: bool = False
    """A cancellation was requested while it runs."""
    tried: int = 0
    """Number of its rows in the attempts."""
    marked: bool = False
    """Another job waits or has waited for it, so its end is kept."""
    waits_for: dict[int, str | None] = field(default_factory=dict)
    """The jobs that it waits for, and their final states."""
    wanted: str = "completed"
    later: bool = False
    """It is due later than the ends of the jobs that it waits for."""
    partition: str | None = None

    @property
    def rank(self) -> tuple[int, int]:
        return (self.priority, self.id)

    def waits(self, place: str = "ready", *, attempts: int | None = None, alone: bool = False) -> None:
        self.place, self.alone, self.cancelled = place, alone, False
        self.attempts = self.attempts if attempts is None else max(attempts, 0)

    def ends(self, state: str) -> None:
        self.place, self.cancelled = state, False

    def is_lost(self) -> None:
        """The job may have started, so the attempt counts."""
        if self.cancelled:
            self.ends("cancelled")
        elif self.attempts >= (self.most or 5):
            self.ends("failed")
        else:
            self.tried += 1
            self.waits(alone=True)

    @property
    def told(self) -> str:
        """The state of a waiting or running job in the view."""
        return "retrying" if self.place in ("ready", "scheduled") and self.attempts else self.place


@dataclass
class Claim:
    token: int
    jobs: list[Job]


@dataclass
class Child:
    id: int
    supervisor: int
    incarnation: int
    registered: bool = True
    claims: list[Claim] = field(default_factory=list)


class Model:
    """The queue under test and its expected content.

    Each method whose name begins with `move_` is a move.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.cursor = queue.connection.cursor(row_factory=dict_row)
        queue.run("TRUNCATE " + ", ".join(f"jobherd.{table}" for table in TABLES) + " CASCADE")
        queue.connection.execute(queue.text("session/force_index_plans"), {"local": False})
        queue.connection.execute("SET lock_timeout = '20s'")  # statements run one at a time, so none needs to wait
        self.jobs: dict[int, Job] = {}
        self.seen: Counter[str] = Counter()
        """Counts of events. An invariant about an event that never happens is not tested."""
        self.past: list[tuple[int, int, list[int]]] = []
        """Ended claims: child, token, jobs."""
        self.incarnation = 0
        self.caps: dict[tuple[str, str], int] = {}
        self.paused: set[tuple[str, str]] = set()
        self.each: dict[str, int] = {}
        """By queue: the limit of running jobs of each partition."""
        self.fair: set[str] = set()
        """Queues whose partitions take turns, also without a limit."""
        self.supervisors = [self.supervisor(), self.supervisor()]
        self.children = [self.child(0), self.child(0), self.child(1)]

    def send(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        self.cursor.execute(self.queue.text(statement), parameters)
        rows = self.cursor.fetchall() if self.cursor.description else []
        if statement == "claim/claim_jobs":
            return [job._asdict() for job in claimed_jobs([tuple(row.values()) for row in rows])]
        return rows

    def supervisor(self) -> int:
        return self.send(
            "lease/register_supervisor", host="test", machine="test", pid=1, pid_started=1, version="0", lease=600.0
        )[0]["id"]

    def child(self, place: int) -> Child:
        self.incarnation += 1
        supervisor = self.supervisors[place]
        row = self.send(
            "lease/register_child", supervisor=supervisor, incarnation=self.incarnation, slot=0, kind="worker", pid=1, pid_started=1
        )[0]  # fmt: skip
        return Child(row["id"], supervisor, self.incarnation)

    # -- what both hold

    def check(self) -> None:
        found: dict[int, tuple[Any, ...]] = {}
        rows = self.queue.run(
            "SELECT id, 'ready', attempts, crashes, alone, false, NULL::bigint FROM jobherd.waiting"
            " UNION ALL SELECT id, 'blocked', attempts, crashes, alone, false, NULL FROM jobherd.blocked"
            " UNION ALL SELECT id, 'scheduled', attempts, crashes, alone, false, NULL FROM jobherd.scheduled"
            " UNION ALL SELECT j.id, 'running', j.attempts + 1, j.crashes, j.alone, "
            "       EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id), r.token"
            "   FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j"
            " UNION ALL SELECT id, state, attempts, crashes, false, false, NULL FROM jobherd.history"
        )
        for number, *rest in rows:
            assert number not in found, f"job {number} is in two places: {found[number]} and {rest}"
            found[number] = tuple(rest)
        tokens = {job.id: claim.token for child in self.children for claim in child.claims for job in claim.jobs}
        expected = {
            job.id: (
                job.place, job.attempts, job.crashes, job.alone and job.place in ("ready", "scheduled", "running"), job.cancelled,
                tokens.get(job.id),
            )
            for job in self.jobs.values()
            if job.place != "gone"
        }  # fmt: skip
        for number in found.keys() | expected.keys():
            assert found.get(number) == expected.get(number), (
                f"job {number} is {found.get(number)} instead of {expected.get(number)}"
            )
        tried = dict(self.queue.run("SELECT job, count(*) FROM jobherd.attempts GROUP BY job"))
        assert tried == {job.id: job.tried for job in self.jobs.values() if job.tried}, "unexpected or missing attempts"

    def running(self, scope: str, name: str) -> int:
        jobs = [job for job in self.jobs.values() if job.place == "running"]
        return sum((job.queue if scope == "queue" else job.kind) == name for job in jobs)

    def own(self, supervisor: int, queue: str) -> int:
        """Return how many jobs of that queue its workers run under gates."""
        return self.queue.run(
            "SELECT count(*) FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child"
            " WHERE c.supervisor = %s AND r.queue = %s AND r.limited_kind IS NOT NULL",
            supervisor, queue,
        )[0][0]  # fmt: skip

    def eligible(self) -> list[Job]:
        """Return the jobs that may be claimed."""
        shut = self.paused | {gate for gate, most in self.caps.items() if self.running(*gate) >= most}
        if ("all", "*") in shut:
            return []
        waiting = [job for job in self.jobs.values() if job.place == "ready" and self.has_room(job)]
        return [job for job in waiting if ("queue", job.queue) not in shut and ("kind", job.kind) not in shut]

    def has_room(self, job: Job) -> bool:
        """Return whether the limit of its partition allows the job to start."""
        most = self.each.get(job.queue)
        return most is None or job.partition is None or self.running_of(job.queue, job.partition) < most

    def running_of(self, queue: str, partition: str) -> int:
        jobs = [job for job in self.jobs.values() if job.place == "running"]
        return sum((job.queue, job.partition) == (queue, partition) for job in jobs)

    def lane(self, job: Job) -> str | None:
        """Return the group within which a job must be the first of its kind."""
        return job.partition if job.queue in self.fair or job.queue in self.each else "all"

    # -- enqueue and claim

    def move_enqueue(self, n: int) -> None:
        count, n = n % 3 + 1, n // 3
        queue, kind, priority = QUEUES[n % 2], KINDS[n // 2 % 2], n // 4 % 3 - 1
        most, delay = (None, 1, 2, None)[n // 12 % 4], (None, LATER)[n // 48 % 5 == 0]
        partition = (None, "p", "q", "r")[n // 240 % 4]
        said = {
            **NOTHING,
            "kind": kind,
            "payloads": ["{}"] * count,
            "queue": queue,
            "priority": priority,
            "max_attempts": most,
            "delay": delay,
            "partition": partition,
        }
        for row in self.send("enqueue/enqueue_jobs", **said):
            place = "scheduled" if delay else "ready"
            self.jobs[row["id"]] = Job(row["id"], queue, kind, priority, most, place, partition=partition)

    def move_after(self, n: int) -> None:
        """A job is enqueued that waits for one or two others in any state."""
        jobs = list(self.jobs.values())
        if not jobs:
            return
        chosen = {jobs[n % len(jobs)].id, jobs[n // 7 % len(jobs)].id}
        queue, kind, wanted = QUEUES[n % 2], KINDS[n // 2 % 2], list(WANTED)[n // 4 % 3]
        given = NOTHING | {"kind": kind, "payloads": ["{}"], "queue": queue, "after": sorted(chosen), "when": wanted}
        (row,) = self.send("enqueue/enqueue_after", **given)
        self.jobs[row["id"]] = Job(
            row["id"], queue, kind, 0, None, "blocked", waits_for=dict.fromkeys(chosen), wanted=wanted
        )

    def resolve(self) -> None:
        """A maintenance process handles the ends of jobs, after each move."""
        while any(job.place == "blocked" for job in self.jobs.values()):
            before = [job.place for job in self.jobs.values()]
            self.send("maintenance/mark_upstreams", past=None, most=1000)
            for _ in range(100):  # a call may begin behind the first end
                self.send("maintenance/resolve_ends", most=1000)
                if self.queue.count("ends") == 0:
                    break
            else:
                raise AssertionError("ends are left that nothing passes on")
            for job in [job for job in self.jobs.values() if job.place == "blocked"]:
                for number, state in list(job.waits_for.items()):
                    upstream = self.jobs[number]
                    if state is None and upstream.place in ("ready", "scheduled", "blocked"):
                        upstream.marked = True
                    if state is None and (upstream.place in TERMINAL.values() or upstream.place == "gone"):
                        job.waits_for[number] = "completed" if upstream.place == "gone" else upstream.place
            for job in [job for job in self.jobs.values() if job.place == "blocked"]:
                ends = list(job.waits_for.values())
                if any(end is not None and end not in WANTED[job.wanted] for end in ends):
                    job.ends("cancelled")
                elif None not in ends:
                    job.place = "scheduled" if job.later else "ready"
                    self.seen["released"] += 1
            if before == [job.place for job in self.jobs.values()]:
                break

    def move_claim(self, n: int) -> None:
        child, n = self.children[n % len(self.children)], n // len(self.children)
        wanted, n = (1, 2, 5)[n % 3], n // 3
        served, n = SERVED[n % len(SERVED)], n // len(SERVED)
        turns, n = TURNS[n % len(TURNS)], n // len(TURNS)
        self.claim(child, wanted, served, turns, {"a": n // 8 % 3 + 1} if n % 4 == 0 else {}, alone=n // 4 % 2 == 0)

    def claim(
        self,
        child: Child,
        wanted: int,
        served: list[str] | None,
        turns: list[str] | None,
        limits: dict[str, int],
        *,
        alone: bool,
    ) -> None:
        """Claim as a worker does.

        turns: the order of the queues if they take turns; other queues come first. limits: the limits of
        its own supervisor, by queue. alone: use the statement for one job, if no gates forbid it.
        """
        ranks: dict[str, int] = {}
        for at, one in enumerate(served or ["*"]):
            for queue in QUEUES:
                if queue == one or (one[-1] == "*" and queue.startswith(one[:-1])):
                    ranks.setdefault(queue, at)
        eligible = [
            job for job in self.eligible()
            if job.queue in ranks and (job.queue not in limits or self.own(child.supervisor, job.queue) < limits[job.queue])
        ]  # fmt: skip
        if turns is not None:
            ranks = {queue: turns.index(queue) if queue in turns else -1 for queue in ranks}
        asked = {
            "supervisor": child.supervisor, "child": child.id, "wanted": wanted, "served": served, "turns": turns, "avoided": None,
            "short": None, "kinds": None, "shares": None,
        }  # fmt: skip
        more: dict[str, Any] = dict.fromkeys(("limited", "limits", "left_queue", "left_kind", "tiers")) | {
            "narrowed": False
        }
        more |= {"limited": list(limits), "limits": list(limits.values())} if limits else {}
        gated = bool(limits) or served is not None and any("*" in one for one in served)
        for _ in range(4):
            rows = (
                self.send("claim/claim_gated", **asked, **more)
                if gated
                else self.send("claim/claim_job" if alone else "claim/claim_jobs", **asked)
            )
            if not rows or rows[0]["id"] is not None:
                break
            assert rows[0]["queue"] is None, "no other session holds a limit"
            gated = not gated
        else:
            raise AssertionError("each of the two claims sends us to the other one")
        taken = [self.jobs[row["id"]] for row in rows]
        if child.supervisor not in self.supervisors:
            assert not taken, "a claim succeeded under a lost lease"
            return
        assert bool(taken) == bool(eligible), f"{len(eligible)} jobs may be claimed, and {len(taken)} were"
        if not taken:
            return
        assert all(job in eligible for job in taken)
        first = taken[0]
        assert {job.queue for job in taken} == {first.queue}
        if turns is not None:
            assert ranks[first.queue] == min(ranks[job.queue] for job in eligible), "it is the turn of another queue"
        if not gated:
            foremost = [job for job in eligible if ranks[job.queue] == min(ranks[job.queue] for job in eligible)]
            assert taken == self.walked(foremost, 1 if alone else wanted)
        elif len(taken) > 1:
            assert ("queue", first.queue) not in self.caps.keys() | {("queue", queue) for queue in limits}
            assert not any(("kind", job.kind) in self.caps.keys() | self.paused or job.alone for job in taken[1:])
            assert len(taken) <= wanted
        before = [
            job
            for job in eligible
            if (job.queue, job.kind, self.lane(job)) == (first.queue, first.kind, self.lane(first))
            and job.rank < first.rank
        ]
        assert not before, "the job was not the first of its queue and kind"
        for row, job in zip(rows, taken, strict=True):
            job.place, job.attempts, job.cancelled = "running", job.attempts + 1, False
            assert (row["attempts"], row["crashes"]) == (job.attempts, job.crashes)
        child.claims.append(Claim(rows[0]["token"], taken))
        self.seen["claimed under gates" if gated else "claimed"] += len(taken)
        for (scope, name), most in self.caps.items():
            named = [job for job in taken if (job.queue if scope == "queue" else job.kind) == name]
            assert not named or self.running(scope, name) <= most, "over its concurrency limit"
        for partition in {job.partition for job in taken} - {None}:
            running = self.running_of(first.queue, partition)
            assert first.queue not in self.each or running <= self.each[first.queue], "over the limit of its partition"
        self.seen["claimed in turn"] += len(taken) if first.queue in self.fair or first.queue in self.each else 0
        assert first.queue not in limits or self.own(child.supervisor, first.queue) <= limits[first.queue], (
            "over its supervisor's own limit"
        )
        self.seen["claimed under a limit"] += first.queue in limits

    def move_join(self, n: int) -> None:
        """A batch handler waits for more jobs of its kind, which join the claim."""
        if (held := self.held(n)) is None:
            return
        child, claim = held
        kind, wanted, queue = KINDS[n // 3 % 2], n // 6 % 3 + 1, claim.jobs[0].queue
        single = self.queue.run(
            "SELECT limited_kind FROM jobherd.running WHERE child = %s AND token = %s", child.id, claim.token
        )[0][0]
        gates = self.caps.keys() | self.paused | {("queue", divided) for divided in self.fair | self.each.keys()}
        may = child.supervisor in self.supervisors and single is None and not any(job.alone for job in claim.jobs)
        may = may and gates.isdisjoint((("queue", queue), ("kind", kind), ("all", "*")))
        waiting = [
            job
            for job in self.jobs.values()
            if (job.place, job.queue, job.kind, job.alone) == ("ready", queue, kind, False)
        ]
        expected = sorted(waiting, key=lambda job: job.rank)[:wanted] if may else []
        rows = self.send(
            "claim/claim_more", supervisor=child.supervisor, child=child.id, token=claim.token, kind=kind, wanted=wanted
        )
        assert [row["id"] for row in rows] == [job.id for job in expected]
        for job in expected:
            job.place, job.attempts, job.cancelled = "running", job.attempts + 1, False
        claim.jobs += expected
        self.seen["joined"] += len(expected)

    @staticmethod
    def walked(eligible: list[Job], wanted: int) -> list[Job]:
        """Return the jobs that a claim gets without limits.

        They are the first jobs of the queue with the first job, up to one that must run alone.
        """
        first = min(eligible, key=lambda job: job.rank)
        found: list[Job] = []
        for job in sorted((job for job in eligible if job.queue == first.queue), key=lambda job: job.rank)[:wanted]:
            if found and (job.alone or found[0].alone):
                break
            found.append(job)
        return found

    # -- record outcomes

    def held(self, n: int) -> tuple[Child, Claim] | None:
        found = [(child, claim) for child in self.children for claim in child.claims]
        return found[n % len(found)] if found else None

    def said(self, child: int, token: int, ids: list[int], outcome: str, **more: object) -> dict[str, Any]:
        given = {name: [more.get(key)] * len(ids) for name, key in PER_JOB.items()}
        return given | {
            "child": child,
            "token": token,
            "ids": ids,
            "outcomes": [outcome] * len(ids),
            "ran_on": "test/1",
        }

    def move_settle(self, n: int) -> None:
        if (held := self.held(n)) is None:
            return
        child, claim = held
        outcome, n = OUTCOMES[n // 7 % len(OUTCOMES)], n // 5
        self.seen[f"settled {outcome}"] += 1
        jobs = claim.jobs if n % 3 else claim.jobs[: 1 + n // 3 % len(claim.jobs)]
        ran, delay, crashed, keep = (
            (1.0, 1.0, None)[n % 3],
            (None, 0.0, LATER)[n // 3 % 3],
            n // 9 % 5 == 0,
            (30, 0)[n // 11 % 4 == 0],
        )
        ids = [job.id for job in jobs]
        common = {"ran": ran, "ago": 0.0, "delay": delay, "crashed": int(crashed), "keep": keep}
        if outcome in ("retry", "failed", "poison"):
            common |= {"code": "OUT_OF_PAPER", "error": "no paper"}
        parameters = self.said(child.id, claim.token, ids, outcome, **common)
        for stranger in (other for other in self.children if other is not child):
            assert self.send("settle/settle_jobs", **parameters | {"child": stranger.id}) == [], (
                "another worker has settled the job"
            )
        assert {row["id"] for row in self.send("settle/settle_jobs", **parameters)} == set(ids)
        assert self.send("settle/settle_jobs", **parameters) == [], "the job was settled twice"
        for job in jobs:
            became = "cancelled" if job.cancelled and outcome in ("retry", "snoozed", "abandoned") else outcome
            attempts = job.attempts - (ran is None or outcome in ("snoozed", "abandoned"))
            job.attempts, job.crashes = max(attempts, 0), job.crashes + crashed
            job.tried += became in ("retry", "snoozed", "abandoned") and ran is not None
            if became in TERMINAL:
                job.ends("gone" if became == "ok" and keep == 0 and not job.marked else TERMINAL[became])
            else:
                job.waits("scheduled" if delay else "ready")
        self.let_go(child, claim, jobs)

    def move_complete(self, n: int) -> None:
        """Settle by the statement for claims whose jobs have all completed."""
        if (held := self.held(n)) is None:
            return
        child, claim = held
        ids = [job.id for job in claim.jobs]
        parameters = self.said(child.id, claim.token, ids, "ok", ran=1.0, ago=0.0, keep=7)
        if len(ids) > 1:
            fewer = self.said(child.id, claim.token, ids[1:], "ok", ran=1.0, ago=0.0, keep=7)
            assert self.send("settle/settle_completed", **fewer) == [], "the statement settled a part of a claim"
        assert [tuple(row.values()) for row in self.send("settle/settle_completed", **parameters)] == [(len(ids),)]
        assert self.send("settle/settle_completed", **parameters) == []
        for job in list(claim.jobs):
            job.ends("completed")
        self.let_go(child, claim, claim.jobs)

    def move_transaction(self, n: int) -> None:
        """A job commits its own completion.

        Its transaction decides, regardless of cancellations and reclaims meanwhile.
        """
        if (held := self.held(n)) is None:
            return
        child, claim = held
        job, n = claim.jobs[0], n // 7
        with psycopg.connect(self.queue.dsn, row_factory=dict_row) as own:
            locked = own.execute(
                self.queue.text("settle/lock_claim"), {"child": child.id, "token": claim.token, "job": job.id}
            ).fetchall()
            if len(claim.jobs) > 1:
                assert locked == [], "the lock would delay the other jobs of the claim"
                return
            asked = {"xact": locked[0]["xact"], "child": child.id, "token": claim.token}
            assert self.send("settle/find_transaction_state", **asked) == [{"fate": "in progress", "held": True}]
            if n % 3 == 1:
                assert self.queue.cancel(job.id) == "cancelling"
                job.cancelled = True
            elif n % 3 == 2 and child.registered and child.supervisor in self.supervisors:
                self.move_orphans(0)  # reclaims earlier orphans
                self.reclaim(self.supervisors.index(child.supervisor), expired=n // 6 % 2 == 0, kept=claim)
                assert self.queue.orphans() == [], "its transaction may still commit"
                self.seen["reclaimed around a transaction"] += 1
            done = self.said(child.id, claim.token, [job.id], "ok", ran=1.0, ago=0.0, keep=30)
            assert own.execute(self.queue.text("settle/settle_jobs"), done).fetchall() == [{"id": job.id}]
            if n // 3 % 2:
                own.commit()
                job.ends("completed")
                self.let_go(child, claim, [job])
            else:
                own.rollback()
            committed = job.place == "completed"
            assert self.send("settle/find_transaction_state", **asked) == [
                {"fate": "committed" if committed else "aborted", "held": not committed}
            ]
            self.seen["committed by itself" if committed else "rolled back"] += 1

    def move_settle_late(self, n: int) -> None:
        """Try to settle under an ended claim.

        Its worker tries it, and so does each other worker, which may hold those jobs under another token.
        """
        if not self.past:
            return
        child, token, ids = self.past[n % len(self.past)]
        for who in (child, *(other.id for other in self.children)):
            assert (
                self.send(
                    "settle/settle_jobs",
                    **self.said(who, token, ids, "failed", ran=1.0, ago=0.0, code="LATE", error="late"),
                )
                == []
            )
            assert (
                self.send("settle/settle_completed", **self.said(who, token, ids, "ok", ran=1.0, ago=0.0, keep=7)) == []
            )

    def let_go(self, child: Child, claim: Claim, jobs: list[Job]) -> None:
        ids = [job.id for job in jobs]
        claim.jobs = sorted((job for job in claim.jobs if job.id not in ids), key=lambda job: job.rank)
        if not claim.jobs:
            child.claims.remove(claim)
            self.past.append((child.id, claim.token, ids))

    # -- users

    def any_job(self, n: int) -> Job | None:
        return list(self.jobs.values())[n % len(self.jobs)] if self.jobs else None

    def move_cancel(self, n: int) -> None:
        running = [job for job in self.jobs.values() if job.place == "running"]
        if (job := running[n // 2 % len(running)] if running and n % 2 else self.any_job(n)) is None:
            return
        answer = self.queue.cancel(job.id)
        if job.place in ("ready", "scheduled", "blocked"):
            job.ends("cancelled")
            assert answer == "cancelled"
        elif job.place == "running":
            job.cancelled = True
            assert answer == "cancelling"
        else:
            assert answer == (None if job.place == "gone" else job.place)

    def move_cancel_late(self, n: int) -> None:
        """A cancel request for an earlier attempt commits once the job is in the queue again. Others are handled."""
        job = self.any_job(n)
        if job is not None and job.place in ("ready", "scheduled"):
            self.queue.run("INSERT INTO jobherd.cancels (job) VALUES (%s)", job.id)
            self.seen["cancelled late"] += 1
            assert self.send("maintenance/apply_cancels", most=1000) == [{"id": job.id}]
            job.ends("cancelled")
        else:
            assert self.send("maintenance/apply_cancels", most=1000) == []
        left = {row[0] for row in self.queue.run("SELECT job FROM jobherd.cancels")}
        assert left == {job.id for job in self.jobs.values() if job.place == "running" and job.cancelled}

    def move_retry(self, n: int) -> None:
        if (job := self.any_job(n)) is None:
            return
        answer = self.queue.retry(job.id)
        if job.place in ("gone", "running", "ready", "blocked"):
            assert answer == {"gone": None}.get(job.place, job.place)
            return
        assert answer == "ready"
        if job.place == "scheduled":
            job.place = "ready"
        else:
            job.crashes = 0
            job.tried += 1  # its last attempt gets a row
            job.waits(attempts=0)

    def move_due(self, n: int) -> None:
        """The time of a scheduled job passes."""
        if found := [job for job in self.jobs.values() if job.place == "scheduled"]:
            job = found[n % len(found)]
            self.queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' WHERE id = %s", job.id)
            job.place = "ready"
        self.send("maintenance/promote_due", most=100)

    def move_edit(self, n: int) -> None:
        """A user runs a finished job again with another payload, as a new job."""
        if (job := self.any_job(n)) is None:
            return
        number = self.queue.run("SELECT jobherd.retry_edited(%s, '{}')", job.id)[0][0]
        assert (number is not None) == (job.place in TERMINAL.values())
        if number is not None:
            self.jobs[number] = Job(
                number, job.queue, job.kind, job.priority, job.most, "ready", partition=job.partition
            )
            assert self.queue.run("SELECT max_attempts FROM jobherd.waiting WHERE id = %s", number) == [(job.most,)]

    def move_rank(self, n: int) -> None:
        """A waiting job gets another priority."""
        if (job := self.any_job(n)) is None:
            return
        priority = n // 7 % 5 - 2
        rows = self.send("control/reprioritize_job", id=job.id, priority=priority, actor=None, reason=None)
        assert rows == [{"answer": None if job.place == "gone" else job.told}]
        if job.place in ("ready", "scheduled", "blocked"):
            job.priority = priority

    def move_time(self, n: int) -> None:
        """A waiting job gets another time."""
        if (job := self.any_job(n)) is None:
            return
        delay = (LATER, -1.0)[n // 7 % 2]
        if job.place in ("ready", "scheduled"):
            job.place = "scheduled" if delay > 0 else "ready"
        job.later = delay > 0
        rows = self.send("control/reschedule_job", id=job.id, run_at=None, delay=delay, actor=None, reason=None)
        assert rows == [{"answer": None if job.place == "gone" else job.told}]

    def move_delete(self, n: int) -> None:
        """A user deletes a job. Only a finished job is deleted."""
        if (job := self.any_job(n)) is None:
            return
        over = job.place in TERMINAL.values()
        rows = self.send("control/delete_job", id=job.id, actor=None, reason=None)
        assert rows == [{"answer": "deleted" if over else None if job.place == "gone" else job.told}]
        if over:
            job.place, job.tried = "gone", 0

    def move_purge(self, n: int) -> None:
        """The history of some states and a kind is deleted in steps."""
        states, kind = (
            (["completed"], ["failed", "cancelled"], ["expired", "failed"])[n % 3],
            (None, *KINDS)[n // 3 % 3],
        )
        reached, gone = 0, 0
        doomed = [job for job in self.jobs.values() if job.place in states and kind in (None, job.kind)]
        cutoff = self.queue.run("SELECT clock_timestamp()")[0][0]
        while reached is not None:
            (row,) = self.send(
                "control/purge_history", after=reached, most=n // 9 % 3 + 1, cutoff=cutoff, states=states, kind=kind
            )
            reached, gone = row["reached"], gone + row["jobs"]
        assert gone == len(doomed)
        for job in doomed:
            job.place, job.tried = "gone", 0
        self.seen["purged"] += gone

    def move_gate(self, n: int) -> None:
        """A user pauses, resumes or limits. Maintenance returns parked jobs whose gate is gone to the queue."""
        scope = ("queue", "kind", "kind", "queue", "kind", "all")[n // 2 % 6]
        name, n = {"queue": QUEUES[n % 2], "kind": KINDS[n % 2], "all": "*"}[scope], n // 12
        gate, given = (scope, name), {"kind": name} if scope == "kind" else {"queue": name}
        word = next(iter(given))
        match n % 5:
            case 0:
                self.queue.run(f"SELECT jobherd.pause({word} => %s)", name)
                self.paused.add(gate)
            case 1 | 2:
                self.queue.run(f"SELECT jobherd.resume({word} => %s)", name)
                self.paused.discard(gate)
            case 3 if scope != "all":
                self.caps[gate] = n // 5 % 3 + 1
                self.queue.run(f"SELECT jobherd.set_limit({word} => %s, max_running => %s)", name, self.caps[gate])
            case 4 if scope != "all":
                self.queue.run(f"SELECT jobherd.set_limit({word} => %s)", name)
                self.caps.pop(gate, None)
        free = "SELECT count(*) FROM jobherd.parked WHERE kind NOT IN (SELECT name FROM jobherd.gates WHERE scope = 'kind')"
        while (parked := self.queue.run(free)[0][0]) > 0:
            self.send("maintenance/release_parked", most=n // 5 % 2 + 1)
            assert self.queue.run(free)[0][0] < parked, "no parked job whose gate is gone returns to the queue"
            self.seen["came back"] += 1
        held_up = self.queue.count("parked")
        self.send("maintenance/release_parked", most=1000)
        assert self.queue.count("parked") == held_up, "a job was unparked although the gate of its kind still exists"

    def move_divide(self, n: int) -> None:
        """The partitions of a queue get a limit or turns, or lose them."""
        queue, by, n = QUEUES[n % 2], {"actor": None}, n // 2
        most = (None, 1, 2, None)[n % 4]
        if n // 4 % 2:
            self.send("control/limit_each", queue=queue, max_running=most, strict=False, **by)
            self.each.pop(queue, None)
            self.each |= {} if most is None else {queue: most}
        else:
            self.send("control/set_turns", queue=queue, weights='{"p": 2}', off=most is None, **by)
            self.fair = self.fair - {queue} if most is None else self.fair | {queue}

    # -- deaths

    def is_over(self, child: Child) -> None:
        for claim in child.claims:
            self.past.append((child.id, claim.token, [job.id for job in claim.jobs]))
        child.claims = []

    def replace(self, child: Child) -> None:
        place = self.supervisors.index(child.supervisor) if child.supervisor in self.supervisors else 0
        self.children[self.children.index(child)] = self.child(place)

    def give_back(self, jobs: list[Job], *, counted: bool, alone: bool | None) -> None:
        for job in jobs:
            attempts = job.attempts if counted else max(job.attempts - 1, 0)
            if job.cancelled:
                job.attempts = attempts
                job.ends("cancelled")
            else:
                job.waits(attempts=attempts, alone=job.alone if alone is None else alone)

    def move_release(self, n: int) -> None:
        """A worker is dead, and its supervisor returns its jobs to the queue."""
        child, crashed, begun = self.children[n % len(self.children)], n // 3 % 3 == 0, n // 27 % 3
        if not child.registered:
            return
        jobs = [job for claim in child.claims for job in claim.jobs]
        cleared = [claim.token for claim in child.claims[:begun]] if crashed else None
        given = {
            "supervisor": child.supervisor,
            "incarnation": child.incarnation,
            "cleared": cleared,
            "error": "it crashed",
        }
        rows = self.send("recover/requeue_child", **given)
        assert {row["id"] for row in rows} == {job.id for job in jobs}
        for claim in child.claims:
            suspect = cleared is not None and claim.token not in cleared
            if suspect and len(claim.jobs) == 1 and not claim.jobs[0].cancelled:
                (job,) = claim.jobs
                job.attempts, job.crashes = max(job.attempts - 1, 0), job.crashes + 1
                if job.crashes >= MOST_CRASHES:
                    job.ends("failed")
                else:
                    job.tried += 1
                    job.waits(alone=True)
            else:
                if suspect and len(claim.jobs) == 1:
                    claim.jobs[0].crashes += 1  # the canceled job may also have killed its worker
                self.give_back(claim.jobs, counted=False, alone=suspect)
        self.is_over(child)
        child.registered = False
        if n // 9 % 3:
            self.replace(child)  # otherwise a late claim of the dead worker may still arrive

    def move_orphans(self, _n: int) -> None:
        """The maintenance process finds the claims of unregistered workers."""
        lost = [child for child in self.children if not child.registered]
        jobs = [job for child in lost for claim in child.claims for job in claim.jobs]
        assert set(self.queue.orphans()) == {job.id for job in jobs}
        for job in jobs:
            job.is_lost()
        for child in lost:
            self.is_over(child)
            self.replace(child)

    def move_unheard(self, n: int) -> None:
        """A worker has a new session. Claims whose answers it did not receive return to the queue."""
        child = self.children[n % len(self.children)]
        if not child.registered or child.supervisor not in self.supervisors:
            return
        heard = child.claims[: n // 3 % (len(child.claims) + 1)]
        unheard = [job for claim in child.claims if claim not in heard for job in claim.jobs]
        rows = self.send(
            "recover/requeue_unacknowledged", child=child.id, known_tokens=[claim.token for claim in heard]
        )
        assert {row["id"] for row in rows} == {job.id for job in unheard}
        self.give_back(unheard, counted=False, alone=None)
        for claim in [claim for claim in child.claims if claim not in heard]:
            self.past.append((child.id, claim.token, [job.id for job in claim.jobs]))
        child.claims = heard

    def move_relieve(self, n: int) -> None:
        """A job takes long. The jobs behind it return to the queue."""
        if (held := self.held(n)) is None:
            return
        child, claim = held
        front = claim.jobs[n // 3 % len(claim.jobs)]
        called = claim.jobs[: n // 15 % 3]  # these run in the same call
        rows = self.send(
            "recover/requeue_rest",
            child=child.id,
            token=claim.token,
            job=front.id,
            called=[job.id for job in called] or None,
        )
        back = [job for job in claim.jobs if job.rank > front.rank and not job.cancelled and job not in called]
        assert {row["id"] for row in rows} == {job.id for job in back}
        self.give_back(back, counted=False, alone=None)
        if back:
            claim.jobs = sorted((job for job in claim.jobs if job not in back), key=lambda job: job.rank)

    def move_reclaim(self, n: int) -> None:
        """A supervisor is dead, and the other one reclaims its jobs."""
        self.reclaim(n % 2, expired=n // 2 % 2 == 0)

    def move_leave(self, n: int) -> None:
        """A supervisor exits. The jobs of its workers return to the queue."""
        place = n % 2
        leaving = self.supervisors[place]
        theirs = [child for child in self.children if child.supervisor == leaving and child.registered]
        jobs = [job for child in theirs for claim in child.claims for job in claim.jobs]
        rows = self.send("recover/unregister_supervisor", supervisor=leaving)
        assert rows == [{"jobs": sum(not job.cancelled for job in jobs)}]
        self.give_back(jobs, counted=False, alone=None)
        for child in theirs:
            self.is_over(child)
        self.succeed(place, theirs)

    def reclaim(self, place: int, *, expired: bool, kept: Claim | None = None) -> None:
        """Reclaim the jobs of the supervisor in that place.

        It is known to be dead, or its lease has expired. kept: a claim that a transaction holds.
        """
        dead, living = self.supervisors[place], self.supervisors[1 - place]
        theirs = [child for child in self.children if child.supervisor == dead and child.registered]
        lost = [(child, claim) for child in theirs for claim in child.claims if claim is not kept]
        if expired:
            self.queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s' WHERE id = %s", dead)
            for child in theirs:
                self.move_claim_of(child)
        row = self.send(
            "recover/reclaim_supervisors",
            supervisor=living,
            dead=[] if expired else [dead],
            lease=0.0,
            clock=None,
            patient=True,
        )[0]
        assert (row["supervisors"], row["jobs"]) == (1, sum(len(claim.jobs) for _, claim in lost))
        assert self.send("lease/renew_lease", supervisor=dead, lease=600.0) == [], (
            "the renewal must show that the supervisor no longer exists"
        )
        for child, claim in lost:
            for job in claim.jobs:
                job.is_lost()
            self.past.append((child.id, claim.token, [job.id for job in claim.jobs]))
            child.claims.remove(claim)
        for child in theirs:
            self.move_claim_of(child)
            child.registered = False
        self.succeed(place, [child for child in theirs if not child.claims])

    def succeed(self, place: int, theirs: list[Child]) -> None:
        """Replace a supervisor by another one with other workers."""
        dead, self.supervisors[place] = self.supervisors[place], self.supervisor()
        for child in theirs:
            self.children[self.children.index(child)] = self.child(place)
        for child in self.children:
            if child.supervisor == dead:
                # an unregistered worker of an unregistered supervisor: its orphans must be
                # found, too
                child.supervisor = -1

    def move_claim_of(self, child: Child) -> None:
        """A worker whose supervisor was reclaimed claims no job."""
        rows = self.send(
            "claim/claim_jobs", supervisor=child.supervisor, child=child.id, wanted=1, served=None, turns=None, avoided=None, short=None, kinds=None, shares=None
        )  # fmt: skip
        assert all(row["id"] is None for row in rows), "a claim succeeded under a lost lease"


Move = tuple[str, int]
WEIGHTS = {
    "enqueue": 12, "after": 5, "claim": 16, "join": 4, "settle": 10, "complete": 3, "transaction": 3, "settle_late": 3, "cancel": 4, "cancel_late": 3, "retry": 4, "edit": 1,
    "rank": 2, "time": 2, "delete": 2, "purge": 1, "due": 3, "gate": 6, "release": 3, "orphans": 3, "unheard": 2, "relieve": 3, "leave": 2,
    "reclaim": 3, "divide": 5,
}  # fmt: skip
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


def play(queue: Queue, moves: list[Move]) -> Counter[str]:
    """Make these moves, check after each, and return counts of events.

    Raises AssertionError if the queue and the model differ.
    """
    model = Model(queue)
    for name, n in moves:
        model.seen["moves"] += 1
        getattr(model, f"move_{name}")(n)
        model.resolve()
        model.check()
    return model.seen
