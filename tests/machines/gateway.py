"""Drives the real bookkeeping of two gateways with simulated remote workers and a simulated database.

Streams, statements and clocks are simulated. Each message, each step of a claim, each transaction
and each answer is a separate move, so it can overtake all others that it can overtake in reality.
For example, a claim passes its check and commits after another gateway has attached the session, an
answer arrives after the stream broke, or the last claim of a killed gateway still commits.

These invariants hold after each move. A Ready is answered once and with no more tasks than it
requested. A claim is sent to one stream only. A task that a worker has received is never released as
if it had not been. A result is recorded once. A gateway does nothing for a session that it has lost to
another gateway. At the end every job is done, and the database holds no claim.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import assignment, deadlines, sessions, settlements, tasks
from jobherd.workers.gateway.state import Limits, State

LIMITS = Limits(streams=5, slots=6, poll=10.0)
FILTERS = (a.Filter(), a.Filter(kinds=("x",)), a.Filter())
TIMES = (0.1, 0.5, 1.0, 3.0, 6.0, 12.0, 31.0, 70.0)


@dataclass
class Row:
    """A session in the database."""

    child: int
    attached: int
    lease_until: float


class Database:
    def __init__(self) -> None:
        self.ready: list[int] = []
        self.rows: dict[tuple[int, int], list[int]] = {}
        self.sessions: dict[int, Row] = {}
        self.done: set[int] = set()
        self.tokens = 40
        self.last_session = 100
        self.enqueued = 0
        self.received: set[a.TaskRef] = set()
        """Tasks that a worker has received and has not released itself."""

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.enqueued += 1
            self.ready.append(self.enqueued)

    def take(self, child: int, token: int, job: int) -> bool:
        """Remove a job from its row if the fencing token still holds it, and return whether it did."""
        jobs = self.rows.get((child, token), [])
        if job not in jobs:
            return False
        jobs.remove(job)
        if not jobs:
            del self.rows[child, token]
        return True

    def give_back(self, child: int, token: int, job: int, *, started: bool) -> None:
        if self.take(child, token, job):
            assert started or a.TaskRef(job, token) not in self.received, (
                f"job {job} is released although a worker received it"
            )
            self.ready.append(job)

    def reclaim(self, session: int) -> None:
        row = self.sessions.pop(session)
        for child, token in [key for key in self.rows if key[0] == row.child]:
            for job in list(self.rows[child, token]):
                self.give_back(child, token, job, started=True)

    def hold(self, session: int, attached: int) -> bool:
        row = self.sessions.get(session)
        return row is not None and row.attached == attached


@dataclass
class Link:
    """One stream, with the messages on their way in both directions."""

    id: int
    gateway: Gateway
    up: deque[tuple[Any, ...]] = field(default_factory=deque)
    down: deque[tuple[Any, ...]] = field(default_factory=deque)
    outbox: deque[a.SendTasks] = field(default_factory=deque)
    """TaskBatches that the gateway has not handed to gRPC."""
    handed: deque[int] = field(default_factory=deque)
    open_above: bool = True
    """The gateway has not noticed its end."""
    open_below: bool = True


@dataclass
class Worker:
    link: Link | None = None
    session: int = 0
    welcome: bool = False
    numbers: int = 0
    readys: dict[int, int] = field(default_factory=dict)
    taken_back: set[int] = field(default_factory=set)
    held: dict[a.TaskRef, str] = field(default_factory=dict)
    """'new', 'runs', or 'said' once its result was sent."""
    unacknowledged: dict[int, list[a.TaskRef]] = field(default_factory=dict)

    @property
    def room(self) -> int:
        return LIMITS.slots - sum(self.readys.values()) - sum(state != "said" for state in self.held.values())


class Gateway:
    def __init__(self, number: int) -> None:
        self.number = number
        self.restart()

    def restart(self) -> None:
        self.state = State(LIMITS)
        self.links: dict[int, Link] = {}
        self.settle: deque[a.Action] = deque()
        self.answer: Any = None
        self.claim: a.Claim | None = None
        self.passed: list[bool] | None = None
        self.found: list[a.Found] | None = None
        self.batches: dict[int, tuple[a.Job, ...]] = {}
        self.gone: set[tuple[int, int]] = set()
        """Attachments that it has lost to another gateway: (session, attached)."""


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.db = Database()
        self.gateways = [Gateway(0), Gateway(1)]
        self.workers = [Worker(), Worker(), Worker()]
        self.links: list[Link] = []
        self.last_link = 0
        self.sent: dict[int, int] = {}
        """By token: the stream that the claim was sent to."""
        self.seen: Counter[str] = Counter()

    # -- a gateway carries out the actions of its bookkeeping

    def carry_out(self, gateway: Gateway, actions: list[a.Action]) -> None:
        for action in actions:
            self.seen[type(action).__name__] += 1
            if isinstance(action, (a.ExpireTasks, a.ReleaseUnacknowledged, a.EndSession)):
                assert (action.session, action.attached) not in gateway.gone, (
                    f"another gateway has attached the session: {action}"
                )
            match action:
                case a.EndStream():
                    link = gateway.links.pop(action.stream)
                    link.open_above = False
                    link.outbox.clear()
                    link.down.append(("end", action.status))
                case a.SendTasks():
                    link = gateway.links[action.stream]
                    if action.claim:
                        assert action.claim not in self.sent, "a claim is sent twice"
                        self.sent[action.claim] = action.stream
                    link.outbox.append(action)
                case a.Welcome():
                    gateway.links[action.stream].down.append(("welcome", action.session, action.lost))
                case a.SendAck():
                    gateway.links[action.stream].down.append(("ack", action.up_to))
                case a.CancelTask():
                    gateway.links[action.stream].down.append(("cancel", action.task, action.reason))
                case a.SendHeartbeatAck():
                    gateway.links[action.stream].down.append(("beat", action.lost))
                case a.SendDrain() | a.SendReleaseRest():
                    gateway.links[action.stream].down.append(("told",))
                case _:
                    gateway.settle.append(action)
        self.check(gateway)

    def check(self, gateway: Gateway) -> None:
        state = gateway.state
        assert state.streams.keys() == gateway.links.keys(), "the loop and the bookkeeping differ"
        for session in state.sessions.values():
            assert (session.id, session.attached) not in gateway.gone
            assert session.out == sum(task.state.counts for _, task in session.refs())
            assert session.orders.keys() == session.claims.keys()
            assert all(session.claims.values())
            assert not session.stream or state.streams[session.stream].session == session.id
        for stream in state.streams.values():
            assert stream.asked == sum(ready.count for ready in stream.readys.values())
            for number, ready in stream.readys.items():
                assert state.groups[ready.filter].waiting[stream.id][number] is ready
        waiting = sum(len(line) for group in state.groups.values() for line in group.waiting.values())
        assert waiting == sum(len(stream.readys) for stream in state.streams.values())

    # -- the database threads

    def run_transaction(self, gateway: Gateway) -> None:
        """Commit the first waiting transaction. Its answer is then on its way."""
        if gateway.answer is not None or not gateway.settle:
            return
        action, db = gateway.settle.popleft(), self.db
        said: Any = None
        match action:
            case a.OpenSession():
                db.last_session += 1
                db.sessions[db.last_session] = Row(db.last_session + 1000, 1, self.now + LIMITS.session_lease)
                said = a.Opened(db.last_session, db.last_session + 1000, 1, {})
            case a.AttachSession():
                row = db.sessions.get(action.session)
                if row is not None:
                    row.attached += 1
                    row.lease_until = self.now + LIMITS.session_lease
                    for child, token in [key for key in db.rows if key[0] == row.child]:
                        for job in list(db.rows[child, token]):
                            if a.TaskRef(job, token) not in action.held:
                                db.give_back(child, token, job, started=False)
                    jobs = {
                        token: tuple(a.Job(job, "x", 1, 5) for job in left)
                        for (child, token), left in db.rows.items()
                        if child == row.child
                    }
                    said = a.Opened(action.session, row.child, row.attached, jobs)
            case a.RenewSessions():
                said = {session for session, attached in action.sessions if db.hold(session, attached)}
                for session in said:
                    db.sessions[session].lease_until = self.now + LIMITS.session_lease
            case a.Release():
                for ref in action.tasks:
                    db.give_back(action.child, ref.claim, ref.task, started=False)
            case a.Settle():
                for ref in action.tasks:
                    if db.take(action.child, ref.claim, ref.task):
                        assert ref.task not in db.done, "recorded twice"
                        db.done.add(ref.task)
            case a.ExpireTasks():
                said = db.hold(action.session, action.attached)
                for ref in action.tasks if said else ():
                    db.give_back(action.child, ref.claim, ref.task, started=True)
            case a.ReleaseUnacknowledged():
                said = db.hold(action.session, action.attached)
                for child, token in [key for key in db.rows if key[0] == action.child] if said else ():
                    for job in list(db.rows[child, token]) if token not in action.known else ():
                        self.seen["released unheard"] += 1
                        db.give_back(child, token, job, started=False)
            case a.EndSession():
                said = db.hold(action.session, action.attached)
                if said:
                    db.reclaim(action.session)
        gateway.answer = (action, said, self.now)

    def answer_transaction(self, gateway: Gateway) -> None:
        if gateway.answer is None:
            return
        (action, said, sent), gateway.answer, state, now = gateway.answer, None, gateway.state, self.now
        found: list[a.Action] = []
        match action:
            case a.OpenSession():
                found = sessions.on_opened(state, action.stream, said, sent, now)
            case a.AttachSession() if said is not None:
                found = sessions.on_opened(state, action.stream, said, sent, now)
            case a.AttachSession():
                found = sessions.on_not_opened(state, action.stream, a.Status.NOT_FOUND, "gone", now)
            case a.RenewSessions():
                gateway.gone |= {one for one in action.sessions if one[0] not in said}
                found = sessions.on_renewed(state, action, said, sent, now)
            case a.Release():
                tasks.on_released(state, action)
            case a.Settle():
                found = tasks.on_settled(state, action)
            case _ if not said:
                gateway.gone.add((action.session, action.attached))
                found = sessions.on_taken_over(state, action.session, action.attached, now)
            case a.ExpireTasks():
                found = tasks.on_expired(state, action, {}, now)
            case a.ReleaseUnacknowledged():
                sessions.on_checked(state, action.session, action.attached, now)
            case a.EndSession():
                gateway.gone.add((action.session, action.attached))
                found = sessions.on_ended(state, action.session, action.attached, now)
        self.carry_out(gateway, found)

    def step_claim(self, gateway: Gateway) -> None:
        """Make a claim, or take the next of its three steps: the check, the commit, the answer."""
        db = self.db
        if gateway.claim is None:
            gateway.claim = assignment.next_claim(gateway.state, 0, self.now)
            if gateway.claim is not None:
                self.seen["claims"] += 1
                assert sum(share.size for share in gateway.claim.shares) <= assignment.MOST_JOBS
                for share in gateway.claim.shares:
                    assert (share.session, share.attached) not in gateway.gone, (
                        "a claim for a session of another gateway"
                    )
        elif gateway.passed is None:
            gateway.passed = [db.hold(share.session, share.attached) for share in gateway.claim.shares]
        elif gateway.found is None:
            gateway.found = []
            for share, passed in zip(gateway.claim.shares, gateway.passed, strict=True):
                jobs, db.ready = (db.ready[: share.size], db.ready[share.size :]) if passed else ([], db.ready)
                if jobs:
                    db.tokens += 1
                    db.rows[share.child, db.tokens] = jobs
                    answer = a.Found(db.tokens, tuple(a.Job(job, "x", 1, 5, (0.0, 90.0)[job % 2]) for job in jobs))
                    gateway.batches[db.tokens] = answer.jobs
                    if share.session not in db.sessions:
                        # Its session was reclaimed between the check and the commit: maintenance finds the row.
                        for job in list(jobs):
                            db.give_back(share.child, db.tokens, job, started=True)
                else:
                    answer = a.Found(0 if passed else a.STALE)
                gateway.found.append(answer)
        else:
            claim, found = gateway.claim, gateway.found
            gateway.claim = gateway.passed = gateway.found = None
            gateway.gone |= {
                (share.session, share.attached)
                for share, answer in zip(claim.shares, found, strict=True)
                if answer.token == a.STALE
            }
            self.carry_out(gateway, assignment.on_claimed(gateway.state, claim, found, self.now))

    # -- messages

    def arrives_above(self, link: Link) -> None:
        gateway, state, now = link.gateway, link.gateway.state, self.now
        what, *rest = link.up.popleft()
        if not link.open_above:
            return
        match what:
            case "hello":
                found = sessions.on_hello(state, link.id, rest[0], now)
            case "ready":
                number, count = rest
                accepts = FILTERS[number % len(FILTERS)]
                found = assignment.on_ready(state, link.id, number, accepts, count, lease=number % 3 * 20.0, now=now)
            case "results":
                found = tasks.on_results(state, link.id, rest[0], rest[1], now)
                results = [settlements.Result(link.id, ref.task, ref.claim, True) for ref in rest[1]]
                planned = settlements.plan_transaction(state, results)
                assert sorted(results) == sorted(
                    one for group in (planned.large, planned.small, planned.rest) for claim in group for one in claim
                )
            case "beat":
                found = tasks.on_heartbeat(state, link.id, rest[0], rest[1], extend=30.0, now=now)
            case _:
                found = tasks.on_release(state, link.id, *rest)
        self.carry_out(gateway, found)

    def arrives_below(self, worker: Worker, link: Link) -> None:
        what, *rest = link.down.popleft()
        match what:
            case "end":
                self.breaks_below(worker)
                if rest[0] is a.Status.NOT_FOUND:
                    worker.session = 0
                    worker.held.clear()
            case "welcome":
                worker.session, worker.welcome = rest[0], True
                for ref in rest[1]:
                    worker.held.pop(ref, None)
                for ref, state in worker.held.items():
                    if state == "said":
                        worker.held[ref] = "runs"  # its result is sent again
            case "tasks":
                number, claim, jobs = rest
                assert number in worker.readys, "a Ready is answered twice, or was never sent"
                assert len(jobs) <= worker.readys.pop(number), "more tasks than the Ready requested"
                for job in jobs:
                    worker.held[a.TaskRef(job.id, claim)] = "new"
                    self.db.received.add(a.TaskRef(job.id, claim))
            case "ack":
                for number in [number for number in worker.unacknowledged if number <= rest[0]]:
                    for ref in worker.unacknowledged.pop(number):
                        worker.held.pop(ref, None)
                        row = next((jobs for (_, token), jobs in self.db.rows.items() if token == ref.claim), [])
                        assert ref.task not in row, "acknowledged before it was committed"
            case "cancel" if rest[1] is a.Reason.LOST:
                worker.held.pop(rest[0], None)
            case "beat":
                for ref in rest[0]:
                    worker.held.pop(ref, None)

    def breaks_below(self, worker: Worker) -> None:
        assert worker.link is not None
        worker.link.open_below = False
        worker.link.up.clear()
        worker.link.down.clear()
        worker.link, worker.welcome = None, False
        worker.readys.clear()
        worker.taken_back.clear()
        worker.unacknowledged.clear()

    def hand(self, link: Link) -> None:
        """The loop hands the next TaskBatch to gRPC, or a write finishes."""
        if link.handed:
            assignment.on_written(link.gateway.state, link.id, link.handed.popleft())
        elif link.outbox:
            action = link.outbox.popleft()
            jobs = link.gateway.batches[action.claim] if action.claim else ()
            self.carry_out(link.gateway, assignment.on_handed(link.gateway.state, link.id, action.ready, self.now))
            if not link.open_above:
                return
            link.handed.append(action.ready)
            if link.open_below:
                link.down.append(("tasks", action.ready, action.claim, jobs))

    # -- moves

    def connected(self, n: int) -> Worker | None:
        found = [worker for worker in self.workers if worker.welcome]
        return found[n % len(found)] if found else None

    def alive(self, n: int) -> Link | None:
        found = [link for gateway in self.gateways for link in gateway.links.values()]
        return found[n % len(found)] if found else None

    def move_time(self, n: int) -> None:
        self.pass_time(TIMES[n % len(TIMES)])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for gateway in self.gateways:
            self.carry_out(gateway, deadlines.due(gateway.state, self.now))
            assert deadlines.wake_at(gateway.state, self.now) > self.now, "the gateway would never sleep"
        for session in [key for key, row in self.db.sessions.items() if row.lease_until <= self.now]:
            self.seen["reclaimed"] += 1
            self.db.reclaim(session)

    def move_freeze(self, n: int) -> None:
        """Time passes, and one of the gateways does not notice."""
        self.now += TIMES[n % len(TIMES)]
        self.carry_out(self.gateways[n % 2], deadlines.due(self.gateways[n % 2].state, self.now))

    def move_enqueue(self, n: int) -> None:
        self.db.enqueue(n % 4 + 1)
        for gateway in self.gateways:
            assignment.on_wake(gateway.state)

    def move_connect(self, n: int) -> None:
        worker, gateway = self.workers[n % 3], self.gateways[n // 3 % 2]
        if worker.link is not None:
            return
        self.last_link += 1
        link = Link(self.last_link, gateway)
        self.links.append(link)
        worker.link = gateway.links[link.id] = link
        self.carry_out(gateway, sessions.on_connect(gateway.state, link.id, self.now))
        hello = sessions.Hello("p", worker.session, tuple(worker.held) if worker.session else ())
        if not worker.session:
            worker.held.clear()
        link.up.append(("hello", hello))

    def move_ready(self, n: int) -> None:
        worker = self.connected(n)
        if worker is None or worker.link is None or worker.room <= 0:
            return
        worker.numbers += 1
        count = n // 3 % worker.room + 1
        worker.readys[worker.numbers] = count
        worker.link.up.append(("ready", worker.numbers, 0 if count == 1 else count))

    def move_take_back(self, n: int) -> None:
        worker = self.connected(n)
        if worker is not None and worker.link is not None and worker.readys:
            number = list(worker.readys)[n // 3 % len(worker.readys)]
            worker.taken_back.add(number)
            worker.link.up.append(("ready", number, 0))

    def move_report(self, n: int) -> None:
        worker = self.connected(n)
        if worker is None or worker.link is None:
            return
        through = [ref for ref, state in worker.held.items() if state != "said"][: n // 3 % 4 + 1]
        if through:
            worker.numbers += 1
            worker.unacknowledged[worker.numbers] = through
            worker.held.update(dict.fromkeys(through, "said"))
            worker.link.up.append(("results", worker.numbers, through))

    def move_run(self, n: int) -> None:
        worker = self.connected(n)
        for ref, state in worker.held.items() if worker is not None else ():
            if state == "new":
                worker.held[ref] = "runs"
                return

    def move_release(self, n: int) -> None:
        """A worker releases a claim of which it has started no task."""
        worker = self.connected(n)
        if worker is None or worker.link is None:
            return
        claims = {ref.claim for ref in worker.held} - {
            ref.claim for ref, state in worker.held.items() if state != "new"
        }
        for claim in sorted(claims)[:1]:
            worker.link.up.append(("release", claim, 0))
            for ref in [ref for ref in worker.held if ref.claim == claim]:
                del worker.held[ref]
                self.db.received.discard(ref)

    def move_beat(self, n: int) -> None:
        worker = self.connected(n)
        if worker is not None and worker.link is not None:
            worker.link.up.append(("beat", n, list(worker.held)))

    def move_up(self, n: int) -> None:
        found = [link for link in self.links if link.up]
        if found:
            self.arrives_above(found[n % len(found)])

    def move_down(self, n: int) -> None:
        found = [worker for worker in self.workers if worker.link is not None and worker.link.down]
        if found:
            worker = found[n % len(found)]
            self.arrives_below(worker, worker.link)

    def move_hand(self, n: int) -> None:
        found = [link for gateway in self.gateways for link in gateway.links.values() if link.outbox or link.handed]
        if found:
            self.hand(found[n % len(found)])

    def move_claim(self, n: int) -> None:
        self.step_claim(self.gateways[n % 2])

    def move_transact(self, n: int) -> None:
        self.run_transaction(self.gateways[n % 2])

    def move_answer(self, n: int) -> None:
        self.answer_transaction(self.gateways[n % 2])

    def move_break_above(self, n: int) -> None:
        link = self.alive(n)
        if link is not None:
            del link.gateway.links[link.id]
            link.open_above = False
            link.up.clear()
            self.carry_out(link.gateway, sessions.on_break(link.gateway.state, link.id, self.now))
            link.down.append(("end", a.Status.UNAVAILABLE))

    def move_break_below(self, n: int) -> None:
        """The worker loses its stream. The gateway notices later, or never."""
        worker = self.workers[n % 3]
        if worker.link is not None:
            self.breaks_below(worker)

    def move_lose_claim(self, n: int) -> None:
        """The claim thread gets no answer. Its session is ended, so an uncommitted claim is never committed."""
        gateway = self.gateways[n % 2]
        if gateway.claim is not None:
            self.seen["claims lost"] += 1
            claim, gateway.claim, gateway.passed, gateway.found = gateway.claim, None, None, None
            self.carry_out(gateway, assignment.on_claim_failed(gateway.state, claim, self.now))

    def move_kill(self, n: int) -> None:
        """SIGKILL: the gateway loses its memory. Committed transactions stay."""
        if n % 4:
            return
        gateway = self.gateways[n // 4 % 2]
        if gateway.passed is not None and gateway.found is None and n % 3:
            self.step_claim(gateway)
        for link in gateway.links.values():
            link.open_above = False
            link.up.clear()
            link.down.append(("end", a.Status.UNAVAILABLE))
        gateway.restart()

    def move_cancel(self, n: int) -> None:
        gateway = self.gateways[n % 2]
        for session in list(gateway.state.sessions.values()):
            for ref, _ in list(session.refs())[:1]:
                self.carry_out(gateway, tasks.on_cancel(gateway.state, session.id, ref))

    def move_relieve(self, n: int) -> None:
        self.carry_out(self.gateways[n % 2], sessions.on_gates_changed(self.gateways[n % 2].state))

    # -- the end

    def settle_down(self) -> None:
        """Deliver all messages and answers that are on their way."""
        for _ in range(60):
            for gateway in self.gateways:
                for _ in range(4):
                    self.step_claim(gateway)
                while gateway.settle or gateway.answer is not None:
                    self.run_transaction(gateway)
                    self.answer_transaction(gateway)
                for link in list(gateway.links.values()):
                    while link.open_above and (link.outbox or link.handed):
                        self.hand(link)
            for link in self.links:
                while link.up:
                    self.arrives_above(link)
            for worker in self.workers:
                while worker.link is not None and worker.link.down:
                    self.arrives_below(worker, worker.link)

    def check_rest(self) -> None:
        """Check the state after all messages are delivered and the first checks after an attach have ended."""
        for gateway in self.gateways:
            for session in gateway.state.sessions.values():
                row = self.db.sessions.get(session.id)
                if row is None or row.attached != session.attached:
                    continue
                held = {token: set(jobs) for (child, token), jobs in self.db.rows.items() if child == session.child}
                known = {token: set(claim) for token, claim in session.claims.items()}
                assert held == known, "the database and the gateway differ on the jobs of a session"
                for ref, task in session.refs():
                    assert task.deadline > self.now, f"the lease of {ref} has expired"
        for worker in self.workers:
            if worker.link is not None and worker.link.open_above:
                assert not worker.taken_back & worker.readys.keys(), "a withdrawn Ready was never answered"

    def end(self) -> None:
        """Check that every job is done in the end while streams last and workers work."""
        for number in range(3):
            self.move_connect(number)
        self.settle_down()
        for _ in range(2):
            self.pass_time(1.5)
            self.settle_down()
        self.check_rest()
        for _ in range(40):
            for number, worker in enumerate(self.workers):
                if worker.link is None:
                    self.move_connect(number)
            for number in range(3):
                self.move_report(number + 9)
                self.move_report(number + 9)
                self.move_ready(number + 9)
            self.settle_down()
            self.pass_time(5.0)
            if len(self.db.done) == self.db.enqueued and not any(worker.held for worker in self.workers):
                break
        self.settle_down()
        assert len(self.db.done) == self.db.enqueued, "a job is not done"
        assert not self.db.rows, "a claim remains in the database"
        for gateway in self.gateways:
            assignment.on_wake(gateway.state)
            self.step_claim(gateway)
            self.carry_out(gateway, sessions.on_drain(gateway.state, 5.0))
        self.settle_down()
        assert not any(worker.readys for worker in self.workers if worker.link), "a Ready was never answered"
        for _ in range(8):
            self.pass_time(5.0)
            self.settle_down()
        for gateway in self.gateways:
            assert sessions.is_drained(gateway.state)
            assert all(session.stream for session in gateway.state.sessions.values()), (
                "a session without a stream remains"
            )


Move = tuple[str, int]
WEIGHTS = {
    "time": 4, "freeze": 1, "enqueue": 4, "connect": 6, "ready": 10, "take_back": 1, "report": 5, "run": 3, "release": 1, "beat": 2, "up": 20, "down": 16, "hand": 14, "claim": 24, "transact": 14, "answer": 14,
    "break_above": 1, "break_below": 2, "lose_claim": 1, "kill": 1, "cancel": 1, "relieve": 1,
}  # fmt: skip
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
assert {name.removeprefix("move_") for name in vars(World) if name.startswith("move_")} == WEIGHTS.keys()


def play(moves: list[Move]) -> Counter[str]:
    """Make these moves, let all jobs end, and return counts of events.

    Raises AssertionError if an invariant is broken.
    """
    world = World()
    for name, n in moves:
        world.seen["moves"] += 1
        getattr(world, f"move_{name}")(n)
    world.end()
    return world.seen
