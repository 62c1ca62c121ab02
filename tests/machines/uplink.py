"""Drives the real bookkeeping of an uplink with a simulated gateway, supervisor and workers.

The uplink's state of the session (`SessionState`) and of the workers (`Router`) is real. Each message is a
separate move, so streams break, uplinks and workers die, and tasks are lost at any time.

These invariants hold after each move. No job runs in two workers, unless it was lost. No task that a worker has
begun is released as if it had not, even if that worker has died. A result is recorded once. Each Ready and each
settlement is answered once. At the end every job is done, and no worker holds a task.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.events import Ref
from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.job.finished import Finished, settlement
from tests.machines.remote_host import Gateway, Link, Stream, Uplink, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 30.0
LOST = m.Refusal.REASON_LOST
CRASHED = Outcome("retry", delay=1.0, error="died of SIGKILL", code="WORKER_CRASHED", started=True)


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.gateway = Gateway()
        self.session = ""
        self.kinds: dict[str, m.KindPolicy] = {}
        self.told: list[dict[str, Any]] = []
        self.workers = [Worker(1), Worker(2), Worker(3)]
        self.incarnations = 3
        self.dead: list[tuple[Worker, set[int]]] = []
        """Dead workers whose jobs the supervisor has not settled, with the requests sent and answered so far."""
        self.ended: list[Link] = []
        """Connections whose end the uplink has not noticed."""
        self.uplink = Uplink(self)
        self.seen: Counter[str] = Counter()

    # -- the gateway

    def give_back(self, ref: Ref, *, started: bool = False) -> None:
        if not started:
            workers = [*self.workers, *(worker for worker, _ in self.dead)]
            assert not any(worker.runs(ref) and ref.task not in worker.over for worker in workers), (
                f"{ref} is released although it runs, or although its worker has died of it"
            )
        del self.gateway.held[ref]
        self.gateway.ready.append(ref.task)

    def arrives_above(self, stream: Stream) -> None:
        gateway, request = self.gateway, stream.up.popleft()
        self.seen[str(request.WhichOneof("event"))] += 1
        match request.WhichOneof("event"):
            case "hello":
                gateway.readys.clear()
                named = [Ref(one.task_id, one.claim) for one in request.hello.held]
                for ref in [ref for ref in gateway.held if ref not in named]:
                    self.give_back(ref)
                lost = [m.TaskRef(task_id=ref.task, claim=ref.claim) for ref in named if ref not in gateway.held]
                ack = m.HelloAck(session="7", lost=lost, session_seconds=LEASE, max_slots=20)
                stream.down.append(m.WorkResponse(hello_ack=ack))
            case "ready" if request.ready.count:
                gateway.readys[request.ready.number] = request.ready.count
            case "ready":
                if gateway.readys.pop(request.ready.number, None) is not None:
                    stream.down.append(m.WorkResponse(tasks=m.TaskBatch(ready=request.ready.number)))
            case "results":
                refusals = [
                    m.Refusal(reason=LOST, task=m.TaskRef(task_id=one.task_id, claim=one.claim))
                    for one in request.results.results
                    if not self.record(one)
                ]
                ack = m.ResultAck(up_to=request.results.number, refusals=refusals)
                stream.down.append(m.WorkResponse(result_ack=ack))
                if request.results.HasField("ready"):
                    gateway.readys[request.results.ready.number] = request.results.ready.count
            case "heartbeat":
                lost = [one for one in request.heartbeat.tasks if Ref(one.task_id, one.claim) not in gateway.held]
                ack = m.HeartbeatAck(number=request.heartbeat.number, lost=lost, session_seconds=LEASE)
                stream.down.append(m.WorkResponse(heartbeat_ack=ack))
            case "release":
                for ref in [ref for ref in gateway.held if ref.claim == request.release.claim]:
                    self.give_back(ref)

    def record(self, result: m.Result) -> bool:
        ref = Ref(result.task_id, result.claim)
        if ref not in self.gateway.held:
            return self.gateway.done.get(ref.task) == ref
        if result.HasField("completed"):
            assert ref.task not in self.gateway.done, "recorded twice"
            self.gateway.done[ref.task] = ref
            del self.gateway.held[ref]
        else:
            self.give_back(ref, started=result.HasField("failed"))
        return True

    # -- moves of the gateway and of the stream

    def move_enqueue(self, n: int) -> None:
        for _ in range(n % 3 + 1):
            self.gateway.enqueued += 1
            self.gateway.ready.append(self.gateway.enqueued)

    def move_deal(self, _n: int) -> None:
        gateway, stream = self.gateway, self.uplink.stream
        if stream is None or not gateway.readys or not gateway.ready:
            return
        number = next(iter(gateway.readys))
        jobs, gateway.ready = gateway.ready[: gateway.readys[number]], gateway.ready[gateway.readys.pop(number) :]
        gateway.tokens += 1
        gateway.held |= dict.fromkeys(Ref(job, gateway.tokens) for job in jobs)
        tasks = [m.Task(id=job, claim=gateway.tokens, kind="a", lease_seconds=LEASE) for job in jobs]
        stream.down.append(m.WorkResponse(tasks=m.TaskBatch(ready=number, tasks=tasks)))

    def move_lapse(self, n: int) -> None:
        """The lease of a task expires. Another host gets the task."""
        gateway, stream = self.gateway, self.uplink.stream
        if n % 4 or not gateway.held:
            return
        ref = list(gateway.held)[n // 4 % len(gateway.held)]
        self.give_back(ref, started=True)
        if stream is not None and self.uplink.state.is_open:
            task = m.TaskRef(task_id=ref.task, claim=ref.claim)
            stream.down.append(m.WorkResponse(cancel=m.Cancel(task=task, reason=m.Cancel.REASON_LOST)))

    def move_refuse(self, n: int) -> None:
        """A gateway that drains answers all Readys without tasks."""
        gateway, stream = self.gateway, self.uplink.stream
        if n % 3 == 0 and stream is not None:
            for number in gateway.readys:
                stream.down.append(m.WorkResponse(tasks=m.TaskBatch(ready=number)))
            gateway.readys.clear()

    def move_connect(self, _n: int) -> None:
        uplink = self.uplink
        if uplink.router.has_started and uplink.router.kinds and uplink.stream is None:
            uplink.stream = Stream()
            uplink.stream.up.append(m.WorkRequest(hello=uplink.state.hello()))

    def move_send(self, _n: int) -> None:
        uplink = self.uplink
        if uplink.stream is not None and (request := uplink.state.next_request(self.now)) is not None:
            uplink.stream.up.append(m.WorkRequest.FromString(request.SerializeToString()))

    def move_up(self, _n: int) -> None:
        if self.uplink.stream is not None and self.uplink.stream.up:
            self.arrives_above(self.uplink.stream)

    def move_down(self, _n: int) -> None:
        uplink = self.uplink
        if uplink.stream is not None and uplink.stream.down:
            uplink.deliver(uplink.state.on_response(uplink.stream.down.popleft(), self.now))
            self.session = uplink.state.session

    def move_post(self, _n: int) -> None:
        if self.uplink.posted:
            self.uplink.posted.popleft()()

    def move_break(self, n: int) -> None:
        uplink = self.uplink
        if n % 3 == 0 and uplink.stream is not None:
            uplink.stream = None
            uplink.deliver(uplink.state.on_break())

    def move_time(self, n: int) -> None:
        self.now += (0.1, 3.0, 11.0)[n % 3]
        self.uplink.router.extend(self.now)

    def move_begin(self, _n: int) -> None:
        if not self.uplink.has_begun:
            self.uplink.begin()

    def move_kill_uplink(self, n: int) -> None:
        if n % 9 == 0:
            self.seen["uplinks"] += 1
            self.ended.clear()
            self.uplink = Uplink(self)
            for worker in self.workers:
                worker.link = None
            self.dead = [(worker, set()) for worker, _ in self.dead]  # its requests are sent again

    # -- moves of workers

    def move_work(self, n: int) -> None:
        """A worker makes all its moves, and the messages of its host are delivered."""
        for what in ("join", "ask", "take", "run", "end", "settle"):
            getattr(self, f"move_{what}")(n)
        for what in ("begin", "connect", *("send", "up", "deal", "down", "post") * (n // 3 % 3)):
            getattr(self, f"move_{what}")(n)

    def move_close_link(self, n: int) -> None:
        """A job has closed the socket of its worker. The uplink notices at once, or after the next Hello."""
        worker = self.workers[n % 3]
        if n // 3 % 3 == 0 and worker.link is not None:
            self.seen["links closed"] += 1
            self.ended.append(worker.link)
            worker.link = None
            if n // 9 % 2:
                self.move_leave(n)

    def move_leave(self, _n: int) -> None:
        for link in self.ended:
            self.uplink.router.leave(link)
        self.ended.clear()

    def move_join(self, n: int) -> None:
        """A worker connects, and sends its unanswered settlement again."""
        worker = self.workers[n % 3]
        if worker.link is not None:
            return
        worker.link, worker.ready = Link(), 0
        held = [m.TaskRef(task_id=ref.task, claim=ref.claim) for ref in worker.held]
        hello = m.Hello(worker_id=str(worker.incarnation), kinds=[m.KindPolicy(kind="a")], held=held)
        self.uplink.router.on_request(worker.link, m.WorkRequest(hello=hello), self.now)
        assert worker.link.sent.popleft().HasField("hello_ack")
        if worker.batch:
            self.settle(worker)

    def move_ask(self, n: int) -> None:
        worker = self.workers[n % 3]
        if worker.link is None or worker.ready or worker.jobs:
            return
        worker.numbers += 1
        worker.ready = worker.numbers
        ready = m.Ready(number=worker.ready, kinds=["a"], count=n // 3 % 3 + 1, lease_seconds=LEASE)
        self.uplink.router.on_request(worker.link, m.WorkRequest(ready=ready), self.now)

    def move_take(self, n: int) -> None:
        worker = self.workers[n % 3]
        if worker.link is None or not worker.link.sent:
            return
        response = worker.link.sent.popleft()
        match response.WhichOneof("event"):
            case "tasks":
                assert response.tasks.ready == worker.ready, "a Ready is answered twice, or was never sent"
                assert response.tasks.tasks, "a worker gets an answer without tasks"
                worker.ready, worker.token = 0, response.tasks.tasks[0].claim
                worker.jobs, worker.begun, worker.lost = [task.id for task in response.tasks.tasks], set(), set()
            case "result_ack":
                assert response.result_ack.up_to == worker.batch, "a settlement is answered twice, or was never sent"
                worker.jobs = [job for job in worker.jobs if job not in worker.reported]
                worker.batch, worker.over, worker.reported = 0, [], []

    def move_run(self, n: int) -> None:
        worker = self.workers[n % 3]
        waiting = [job for job in worker.jobs if job not in worker.begun | worker.lost]
        if worker.batch or not waiting or worker.begun & {*worker.jobs} - {*worker.over}:
            return
        ref = Ref(waiting[0], worker.token)
        others = [other for other in self.workers if other is not worker and other.runs(ref)]
        assert not others, f"{ref} runs twice"
        worker.begun.add(ref.task)

    def move_end(self, n: int) -> None:
        worker = self.workers[n % 3]
        worker.over += [job for job in worker.begun if job in worker.jobs and job not in worker.over][:1]

    def move_settle(self, n: int) -> None:
        worker = self.workers[n % 3]
        settled = worker.over + [job for job in worker.jobs if job in worker.lost and job not in worker.over]
        if worker.link is None or worker.batch or not settled or (len(settled) < len(worker.jobs) and n % 2):
            return
        worker.reported = settled
        worker.numbers += 1
        self.settle(worker)

    def settle(self, worker: Worker) -> None:
        assert worker.link is not None
        worker.batch = worker.batch or worker.numbers
        results = [m.Result(task_id=job, claim=worker.token, completed=m.Completed()) for job in worker.reported]
        batch = m.ResultBatch(number=worker.batch, results=results)
        self.uplink.router.on_request(worker.link, m.WorkRequest(results=batch), self.now)

    def move_tell(self, _n: int) -> None:
        """The supervisor is notified of a lost task, so the worker does not start it."""
        if self.told:
            event = self.told.pop(0)
            for worker in self.workers:
                if worker.incarnation == event.get("incarnation") and event["token"] == worker.token:
                    worker.lost.add(event["job"])

    # -- moves of the supervisor

    def move_kill_worker(self, n: int) -> None:
        if n % 8:
            return
        self.seen["deaths"] += 1
        worker = self.workers.pop(n // 8 % 3)
        if worker.link is not None:
            self.uplink.router.leave(worker.link)
        self.dead.append((worker, set()))
        self.incarnations += 1
        self.workers.append(Worker(self.incarnations))

    def move_recover(self, _n: int) -> None:
        """The supervisor settles what a dead worker had, as `crash/recovery.py` does."""
        if not self.dead or not self.uplink.has_begun:
            return
        worker, sent = self.dead[0]
        if 1 not in sent:
            sent.add(1)
            self.ask("recover/terminate_child_sessions", lambda _: sent.add(2), incarnation=worker.incarnation)
            running = [job for job in worker.begun if job in worker.jobs]
            finished = [Finished(job, Outcome("ok") if job in worker.over else CRASHED, 1.0) for job in running]
            if not finished:
                sent.add(3)
            else:
                values = settlement(worker.incarnation, worker.token, finished, ran_on="here/1", now=1.0)
                self.ask("settle/settle_jobs", lambda _: sent.add(3), **values)
        elif sent >= {1, 2, 3}:
            self.ask(
                "recover/requeue_child",
                lambda _: self.dead.pop(0),
                incarnation=worker.incarnation,
                cleared=[worker.token] if worker.begun else [],
                error="died of SIGKILL",
            )

    def ask(self, name: str, answer: Callable[[Any], object], **parameters: Any) -> None:
        uplink = self.uplink
        assert uplink.router.carry_out(name, parameters, lambda rows: answer(rows) if self.uplink is uplink else None)

    # -- the end

    @property
    def is_over(self) -> bool:
        gateway = self.gateway
        waits = gateway.held or self.dead or self.uplink.posted or any(worker.jobs for worker in self.workers)
        joined = self.uplink.router.workers == {worker.incarnation for worker in self.workers}
        return len(gateway.done) == gateway.enqueued and joined and not waits

    def finish(self) -> None:
        """Check that every job is done if there are no further faults."""
        fair = [
            name for name in NAMES if name not in {"enqueue", "lapse", "refuse", "break", "close_link", "kill_uplink", "kill_worker"}
        ]  # fmt: skip
        for step in range(600):
            for name in fair:
                getattr(self, f"move_{name}")(step * 7)
            if self.is_over:
                break
        assert len(self.gateway.done) == self.gateway.enqueued, (
            f"of {self.gateway.enqueued} jobs, only these are done: {self.gateway.done}"
        )
        assert not self.gateway.held
        assert not self.dead
        assert not any(worker.jobs for worker in self.workers)
        assert self.uplink.router.workers == {worker.incarnation for worker in self.workers}, (
            "the connected workers are not the living ones"
        )
        assert self.uplink.state.is_settled
        assert self.uplink.router.is_settled


NAMES = [name.removeprefix("move_") for name in dir(World) if name.startswith("move_")]


def play(moves: list[tuple[str, int]]) -> Counter[str]:
    """Make the moves, then let all jobs end. Raises AssertionError if an invariant is broken."""
    world = World()
    for name, n in moves:
        getattr(world, f"move_{name}")(n)
        world.seen["moves"] += 1
    world.finish()
    return world.seen
