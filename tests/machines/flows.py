"""Compares flows in a real PostgreSQL with a model: waiting and running jobs, and the counts of each flow.

Users start flows that wait for jobs and flows, add nodes, cancel and retry jobs and flows, also from a node on.
Workers claim and settle. A node with a job for each item of a list becomes a flow of these jobs. After each move,
maintenance handles the ends of jobs, some of them at a time, until none is left. Then both must have the same jobs
in the same states, and the counts of each flow must match its members.

So no job starts before the ends that it waits for, and none waits for an end that cannot come. A flow ends with its last
live member, also if members were run again by hand before the flow was, and not before it is sealed. A
callback runs once.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.support.queue import Queue

WHEN = ("completed", "failed", "ended")
POLICIES = ("cancel", "continue")
ON = {"success": "completed", "failure": "failed", "done": "ended"}
WANTED = {"completed": {"completed"}, "failed": {"failed"}}
LIVE = ("blocked", "ready", "running", "open")
OUTCOMES = ("ok", "ok", "ok", "failed", "retry", "cancelled")
TABLES = "ready parked scheduled running blocked history attempts cancels edges ends flows results children supervisors"
MOST = (1, 2, 1000)
PLACES = """
SELECT id, 'ready' FROM jobherd.waiting UNION ALL SELECT id, 'scheduled' FROM jobherd.scheduled
UNION ALL SELECT id, 'blocked' FROM jobherd.blocked
UNION ALL SELECT j.id, 'running' FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
UNION ALL SELECT id, state FROM jobherd.history"""

MEMBERS = """
SELECT id FROM jobherd.ready r WHERE (r.extras).flow = %s UNION SELECT id FROM jobherd.history h WHERE (h.extras).flow = %s ORDER BY 1"""

LEFT = """
SELECT 1 FROM jobherd.ends UNION ALL SELECT 1 FROM jobherd.edges e
 WHERE NOT e.marked AND NOT EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE j.id = e.upstream) LIMIT 1"""
"""A job that was running when another one began to wait for it is not marked before it has ended."""


@dataclass(eq=False)
class Job:
    id: int
    flow: Flow | None = None
    """The flow of which it is a member."""
    place: str = "ready"
    wanted: str = "completed"
    known: dict[int, str | None] = field(default_factory=dict)
    """Jobs and flows that it waits for, and their final states. "unknown": the job was canceled before that end."""
    why: str = ""
    """Why it was canceled: "upstream", "unneeded", "flow" or "hand"."""
    asked: bool = False
    """A cancel was requested while it ran."""
    node: str = ""
    result: int = 0
    """The length of the list with which it has completed."""
    source: int | None = None
    """The job whose list gives it a job for each item."""
    items: int = 0
    """The length of that list when the source ended."""

    def is_wanted(self, state: str) -> bool:
        return self.wanted == "ended" or state in WANTED[self.wanted]

    def cancel(self, why: str) -> None:
        if self.place == "blocked":
            self.known = {number: state or "unknown" for number, state in self.known.items()}
        self.place, self.why, self.asked = "cancelled", why, False


@dataclass(eq=False)
class Flow:
    id: int
    policy: str
    members: list[Job | Flow] = field(default_factory=list)
    callbacks: list[Job] = field(default_factory=list)
    sealed: bool = True
    place: str = "open"
    stopping: bool = False
    counts: tuple[int, ...] = ()
    """pending, completed, failed, cancelled at its end."""
    origin: Job | None = None
    """The member of another flow that has become this one."""
    why: str = ""

    @property
    def known(self) -> dict[int, str | None]:
        """Jobs and flows for which the member waited that has become this flow."""
        return {} if self.origin is None else self.origin.known

    def is_wanted(self, state: str) -> bool:
        return state == "completed"

    @property
    def node(self) -> str:
        return "" if self.origin is None else self.origin.node

    def count(self) -> tuple[int, ...]:
        places = Counter(job.place for job in self.members if job.why != "unneeded" or job.place != "cancelled")
        return (sum(places[place] for place in LIVE), places["completed"], places["failed"], places["cancelled"])


class Model:
    """The flows under test and their expected states.

    Each method whose name begins with `move_` is a move.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        queue.run("TRUNCATE " + ", ".join(f"jobherd.{table}" for table in TABLES.split()) + " CASCADE")
        self.worker = queue.supervisor().child()
        self.jobs: dict[int, Job] = {}
        self.flows: dict[int, Flow] = {}
        self.claims: dict[int, int] = {}
        """Tokens of running jobs."""
        self.seen: Counter[str] = Counter()

    def ask(self, text: str, *values: object) -> Any:
        return self.queue.run(f"SELECT {text}", *values)[0][0]

    # -- maintenance

    def pass_on(self, most: int) -> None:
        """Do what maintenance processes do until nothing is left, in the database and in the model."""
        for _ in range(1000):
            self.queue.connection.execute(self.queue.text("maintenance/mark_upstreams"), {"past": None, "most": 1000})
            [(ended, released, cancelled, *_)] = self.queue.connection.execute(
                self.queue.text("maintenance/resolve_ends"), {"most": most}
            ).fetchall()
            if not (ended or released or cancelled or self.queue.run(LEFT)):
                break
        else:
            left = self.queue.run("SELECT * FROM jobherd.ends"), self.queue.run("SELECT * FROM jobherd.edges")
            raise AssertionError(f"ends are left that nothing passes on: {left}")
        before = None
        while before != (now := [(job.place, job.asked) for job in self.jobs.values()] + [(f.place, f.stopping) for f in self.flows.values()]):  # fmt: skip
            before = now
            for flow in self.flows.values():
                self.resolve(flow)
            for job in list(self.jobs.values()):
                self.release(job)

    def resolve(self, flow: Flow) -> None:
        """Update the state of a flow."""
        if flow.place != "open":
            return
        flow.stopping |= flow.policy == "cancel" and flow.count()[2] > 0
        for job in flow.members if flow.stopping else ():
            if isinstance(job, Flow):
                job.stopping |= job.place == "open"
                continue
            if job.place in ("blocked", "ready"):
                job.cancel("flow")
            job.asked |= job.place == "running"
        if flow.count()[0] == 0 and (flow.sealed or flow.stopping):
            flow.counts = flow.count()
            flow.place = "failed" if flow.counts[2] else "cancelled" if flow.counts[3] else "completed"
            flow.stopping, flow.sealed = False, True
            self.seen[f"flow {flow.place}"] += 1

    def release(self, job: Job) -> None:
        """Make a blocked job ready, cancel it, or keep it blocked."""
        if job.place != "blocked":
            return
        for number, state in job.known.items():
            up = self.jobs.get(number) or self.flows[number]
            if state is None and up.place not in LIVE:
                job.known[number] = up.place
                job.items = up.result if number == job.source and isinstance(up, Job) else job.items
        states = job.known.values()
        if any(state is not None and not job.is_wanted(state) for state in states):
            job.cancel("unneeded" if job.wanted == "failed" else "upstream")
            self.seen[f"cancelled, {job.why}"] += 1
        elif None not in states and job.source is not None:
            self.spread(job)
        elif None not in states:
            job.place = "ready"
            self.seen["released"] += 1

    def spread(self, job: Job) -> None:
        """A member becomes a flow, with a job for each item."""
        assert job.flow is not None
        ids = [number for (number,) in self.queue.run(MEMBERS, job.id, job.id)]
        assert len(ids) == job.items
        inner = self.flows[job.id] = Flow(job.id, job.flow.policy, origin=job)
        inner.members = [Job(number, inner, node=job.node) for number in ids]
        self.jobs |= {one.id: one for one in inner.members if isinstance(one, Job)}
        del self.jobs[job.id]
        job.flow.members[job.flow.members.index(job)] = inner
        self.seen["mapped"] += 1
        self.seen["mapped, no item"] += not ids

    def check(self) -> None:
        found = self.queue.run(PLACES)
        assert len(found) == len(dict(found)), "a job is in two places"
        expected = {job.id: job.place for job in self.jobs.values()}
        wrong = {
            number: (dict(found).get(number), place)
            for number, place in expected.items()
            if dict(found).get(number) != place
        }
        assert not wrong, f"actual and expected states of jobs: {wrong}"
        assert dict(found).keys() == expected.keys()
        for number, *counts in self.queue.run(
            "SELECT id, state, pending, completed, failed, cancelled FROM jobherd.flows"
        ):
            flow = self.flows[number]
            should = [flow.place, *(flow.count() if flow.place == "open" else flow.counts)]
            assert counts == should, f"flow {number} is {counts} instead of {should}"
        self.queue.connection.execute(self.queue.text("maintenance/apply_cancels"), {"most": 1000})
        asked = {number for (number,) in self.queue.run("SELECT job FROM jobherd.cancels")}
        should = {job.id for job in self.jobs.values() if job.asked}
        assert asked == should, f"a cancellation is requested for the jobs {asked} instead of {should}"

    # -- users

    def any_job(self, n: int) -> Job | None:
        return list(self.jobs.values())[n % len(self.jobs)] if self.jobs else None

    def any_flow(self, n: int) -> Flow | None:
        return list(self.flows.values())[n % len(self.flows)] if self.flows else None

    def graph(self, n: int, count: int, suffix: str = "") -> tuple[list[dict[str, Any]], list[list[int]]]:
        """Return nodes, and for each the numbers of the nodes before it that it waits for.

        A node that gets a list waits first for the job that returns it.
        """
        nodes: list[dict[str, Any]] = []
        before: list[list[int]] = []
        for place in range(count):
            behind = [other for other in range(place) if n >> (place + other) & 1]
            node = {"node": f"n{place}{suffix}", "kind": "m:node", "after": [f"n{other}{suffix}" for other in behind]}
            node["when"] = WHEN[(n // 3 + place * (n % 4)) % 3]
            if n % 7 < 3 and behind and "map" not in nodes[behind[0]]:
                node |= {"when": "completed", "map": "item", "bind": {"item": node["after"].pop(0)}}
            nodes.append(node)
            before.append(behind)
        return nodes, before

    def note(self, flow: Flow, nodes: list[dict[str, Any]], before: list[list[int]], outside: list[int]) -> None:
        """Add the enqueued jobs to the model."""
        ids = [number for (number,) in self.queue.run("SELECT id FROM jobherd.jobs WHERE id <> ALL (%s) ORDER BY id", list(self.jobs))]  # fmt: skip
        assert len(ids) == len(nodes)
        for place, (number, node) in enumerate(zip(ids, nodes, strict=True)):
            if "on" in node:
                job = Job(number, None, "blocked", ON[node["on"]], {flow.id: None})
                flow.callbacks.append(job)
            else:
                known: dict[int, str | None] = dict.fromkeys(ids[other] for other in before[place])
                known |= dict.fromkeys(outside) if place == 0 else {}
                job = Job(number, flow, "blocked" if known else "ready", node["when"], known, node=node["node"])
                job.source = ids[before[place][0]] if "map" in node else None
                flow.members.append(job)
            self.jobs[number] = job

    def move_start(self, n: int) -> None:
        nodes, before = self.graph(n, n % 4 + 1)
        others = [*self.jobs, *self.flows]
        outside = [others[n % len(others)]] if others and n % 5 == 0 else []
        nodes[0]["after"] = outside
        nodes += [{"node": on, "kind": "m:callback", "on": on} for place, on in enumerate(ON) if n >> (4 + place) & 1]
        policy = POLICIES[n // 2 % 2]
        sealed = n % 3 != 0
        given = (json.dumps(nodes), json.dumps({"policy": policy, "sealed": sealed}))
        flow = Flow(self.ask("jobherd.start_flow('machine', %s::jsonb, %s::jsonb)", *given), policy, sealed=sealed)
        self.flows[flow.id] = flow
        self.note(flow, nodes, before, outside)

    def move_extend(self, n: int) -> None:
        """A running member adds nodes."""
        running = [job for job in self.jobs.values() if job.place == "running" and job.flow is not None]
        if not running:
            return
        flow = running[n % len(running)].flow
        assert flow is not None
        if flow.place != "open" or flow.origin is not None:  # the member was run again after the end of the flow
            return
        nodes, before = self.graph(n, n % 3 + 1, f"-{len(flow.members)}")
        assert self.ask("jobherd.extend_flow(%s, %s::jsonb)", flow.id, json.dumps(nodes)) == len(nodes)
        self.note(flow, nodes, before, [])
        self.seen["extended"] += 1

    def move_add(self, n: int) -> None:
        """Another program adds a node to a flow that is not sealed."""
        flows = [flow for flow in self.flows.values() if not flow.sealed and flow.place == "open"]
        if not flows:
            return
        flow = flows[n % len(flows)]
        nodes = [{"node": f"added-{len(flow.members)}", "kind": "m:node", "when": "completed"}]
        assert self.ask("jobherd.extend_flow(%s, %s::jsonb)", flow.id, json.dumps(nodes)) == 1
        self.note(flow, nodes, [[]], [])
        self.seen["added"] += 1

    def move_seal(self, n: int) -> None:
        if (flow := self.any_flow(n)) is None:
            return
        answer = self.ask("jobherd.seal_flow(%s)", flow.id)
        assert answer == ("sealed" if flow.place == "open" else flow.place)
        self.seen["sealed"] += not flow.sealed
        flow.sealed = True

    def move_deadline(self, n: int) -> None:
        """The deadline of a flow passes."""
        if (flow := self.any_flow(n)) is None or flow.place != "open":
            return
        self.queue.run("UPDATE jobherd.flows SET deadline = now() - interval '1 s' WHERE id = %s", flow.id)
        flow.stopping = True
        self.seen["deadline"] += 1

    def move_after(self, n: int) -> None:
        """A job outside of all flows waits for a job or a flow."""
        others = [*self.jobs, *self.flows]
        if not others:
            return
        up, when = others[n % len(others)], WHEN[n // 3 % 3]
        number = self.ask("jobherd.enqueue('m:outside', '{}', %s::jsonb)", json.dumps({"after": [up], "when": when}))
        self.jobs[number] = Job(number, None, "blocked", when, {up: None})

    def move_cancel(self, n: int) -> None:
        if (job := self.any_job(n)) is None:
            return
        answer = self.queue.cancel(job.id)
        if job.place in ("blocked", "ready"):
            assert answer == "cancelled"
            job.cancel("hand")
        elif job.place == "running":
            assert answer == "cancelling"
            job.asked = True

    def move_cancel_flow(self, n: int) -> None:
        if (flow := self.any_flow(n)) is None:
            return
        answer = self.ask("jobherd.cancel_flow(%s)", flow.id)
        assert answer == ("cancelling" if flow.place == "open" else flow.place)
        flow.stopping |= flow.place == "open"

    def move_retry(self, n: int) -> None:
        """A job is run again by hand."""
        ended = [job for job in self.jobs.values() if job.place not in LIVE]
        if not ended:
            return
        job = ended[n % len(ended)]
        assert self.queue.retry(job.id) == "ready"
        job.place, job.why = "ready", ""
        self.seen["member retried"] += job.flow is not None
        self.seen["member retried after the end"] += job.flow is not None and job.flow.place != "open"

    def move_retry_flow(self, n: int) -> None:
        if (flow := self.any_flow(n)) is None:
            return
        answer = self.ask("jobherd.retry_flow(%s)", flow.id)
        if flow.place in ("open", "completed"):
            assert answer == 0
            return
        failed = {one.id for one in flow.members if one.place in ("failed", "cancelled") and one.why != "unneeded"}
        assert answer == self.run_again(flow, failed)
        self.seen["flow retried"] += 1

    def move_retry_from(self, n: int) -> None:
        """A flow runs again from a node on."""
        if (flow := self.any_flow(n)) is None or flow.origin is not None or not flow.members:
            return
        node = flow.members[n // 5 % len(flow.members)].node
        chosen = {
            one.id for one in flow.members if one.node == node and (isinstance(one, Flow) or one.place not in LIVE)
        }
        size = 0
        while chosen and size < (size := len(chosen)):
            chosen |= {one.id for one in flow.members if not chosen.isdisjoint(one.known)}
        inner = [one for one in flow.members if isinstance(one, Flow) and one.id in chosen]
        refused = not chosen or any(one.place in LIVE for each in inner for one in (each, *each.members))
        try:
            answer = self.ask("jobherd.retry_flow(%s, from_node => %s)", flow.id, node)
        except psycopg.errors.InvalidParameterValue:
            assert refused
            assert flow.place != "open"
            self.seen["retry from a node refused"] += 1
            return
        if flow.place == "open":
            assert answer == 0
            return
        assert not refused
        for each in inner:
            assert each.origin is not None
            flow.members[flow.members.index(each)] = each.origin
            each.origin.known = dict.fromkeys(each.origin.known)
            self.jobs[each.id] = each.origin
            del self.flows[each.id]
            for one in each.members:
                assert isinstance(one, Job)
                one.flow = None
        assert answer == len(inner) + self.run_again(flow, chosen)
        self.seen["retried from a node"] += 1
        self.seen["mapped again"] += len(inner)

    def run_again(self, flow: Flow, chosen: set[int]) -> int:
        """Run members of an ended flow again, with those that need them or are needed. Return the number of jobs."""
        total, before, retried = 0, 0, set[int]()
        while before < len(chosen):
            before = len(chosen)
            some = [one for one in flow.members if one.id in chosen]
            for one in flow.members:
                ended = one.place in ("failed", "cancelled")
                needs = not chosen.isdisjoint(one.known)
                needed = any(one.id in other.known and not other.is_wanted(one.place) for other in some)
                if isinstance(one, Job) and ended and (needs or (needed and one.why != "unneeded")):
                    chosen.add(one.id)
                if (
                    isinstance(one, Flow)
                    and ended
                    and (one.id in chosen or any(one.id in other.known for other in some))
                ):
                    chosen.add(one.id)
                    if one.id not in retried:
                        retried.add(one.id)
                        total += self.run_again(
                            one, {each.id for each in one.members if each.place in ("failed", "cancelled")}
                        )
        for one in flow.members:
            if one.id not in chosen:
                continue
            for number, state in one.known.items():
                if number in chosen or state in (None, "unknown") or not one.is_wanted(state):
                    one.known[number] = None
            if isinstance(one, Flow):
                continue
            one.asked = False
            if one.place not in LIVE:
                total += 1
                one.place, one.why = "blocked" if None in one.known.values() else "ready", ""
        flow.place = "open"
        for job in flow.callbacks:
            if job.place == "cancelled" and job.why in ("upstream", "unneeded"):
                job.place, job.why, job.known = "blocked", "", {flow.id: None}
        return total

    # -- workers

    def move_claim(self, _n: int) -> None:
        rows = self.worker.claim(1)
        ready = [job for job in self.jobs.values() if job.place == "ready"]
        assert bool(rows) == bool(ready)
        for row in rows:
            job = self.jobs[row.id]
            assert job in ready
            job.place = "running"
            self.claims[job.id] = row.token

    def move_settle(self, n: int) -> None:
        if not self.claims:
            return
        number = list(self.claims)[n % len(self.claims)]
        job, token = self.jobs[number], self.claims.pop(number)
        outcome = OUTCOMES[n // 7 % len(OUTCOMES)]
        size = n % 4 + n // 11 % 2
        more = {"result": json.dumps([*range(size)])} if outcome == "ok" else {"error": "no", "code": "NO"}
        assert self.worker.settle(token, [number], outcome, **more) == [number]
        if outcome == "cancelled" or (outcome == "retry" and job.asked):
            job.cancel("worker")
        else:
            job.place = {"ok": "completed", "retry": "ready"}.get(outcome, outcome)
        job.asked = False
        job.result = size if outcome == "ok" else job.result
        self.seen[f"settled {outcome}"] += 1


Move = tuple[str, int]
WEIGHTS = {
    "start": 5, "extend": 2, "add": 2, "seal": 3, "deadline": 1, "after": 2, "cancel": 2, "cancel_flow": 1, "retry": 3, "retry_flow": 4, "retry_from": 3, "claim": 14, "settle": 14,
}  # fmt: skip
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


def play(queue: Queue, moves: list[Move]) -> Counter[str]:
    """Make these moves, check after each, and return counts of events.

    Raises AssertionError if the database and the model differ.
    """
    model = Model(queue)
    try:
        for name, n in moves:
            model.seen["moves"] += 1
            getattr(model, f"move_{name}")(n)
            model.pass_on(MOST[n % len(MOST)])
            model.check()
    finally:
        model.worker.connection.close()
    return model.seen
