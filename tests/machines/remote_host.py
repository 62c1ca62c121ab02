"""Simulates the surroundings of an uplink for `uplink.py`: gateway, stream, sockets, workers, process.

These classes store the effects of moves and decide nothing. The process has the real bookkeeping.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.events import ReadyAnswered, Ref
from jobherd.workers.uplink.router import Router
from jobherd.workers.uplink.session_state import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.machines.uplink import World


@dataclass
class Gateway:
    """A gateway that never ends the session. Only leases of single tasks expire."""

    ready: list[int] = field(default_factory=list)
    held: dict[Ref, None] = field(default_factory=dict)
    done: dict[int, Ref] = field(default_factory=dict)
    readys: dict[int, int] = field(default_factory=dict)
    tokens: int = 40
    enqueued: int = 0


@dataclass
class Stream:
    up: deque[m.WorkRequest] = field(default_factory=deque)
    down: deque[m.WorkResponse] = field(default_factory=deque)


@dataclass(eq=False)
class Link:
    """The socket between a worker and an uplink, at the uplink's end. sent: messages on their way to the worker."""

    child: int = 0
    closed: bool = False
    sent: deque[m.WorkResponse] = field(default_factory=deque)

    def send(self, response: m.WorkResponse) -> None:
        self.sent.append(response)

    def close(self) -> None:
        self.closed = True


@dataclass(eq=False)
class Worker:
    incarnation: int
    link: Link | None = None
    ready: int = 0
    """The number of its unanswered Ready."""
    numbers: int = 0
    token: int = 0
    jobs: list[int] = field(default_factory=list)
    """The jobs that its claim still holds. The file of held jobs names the same ones."""
    begun: set[int] = field(default_factory=set)
    over: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Jobs that were reported to the supervisor as lost to another worker."""
    batch: int = 0
    """The number of its unacknowledged settlement."""
    reported: list[int] = field(default_factory=list)

    @property
    def held(self) -> list[Ref]:
        return [Ref(job, self.token) for job in self.jobs]

    def runs(self, ref: Ref) -> bool:
        return ref.claim == self.token and ref.task in self.begun and ref.task in self.jobs


class Uplink:
    """One uplink process. It also serves as the stream of its router."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = SessionState(m.Hello())
        self.router = Router(self, world.told.append, stopping=5.0)
        self.router.kinds = dict(world.kinds)
        self.stream: Stream | None = None
        self.asked: dict[int, Callable[..., None]] = {}
        self.posted: deque[Callable[[], None]] = deque()
        self.report_progress = self.state.tell_progress
        self.has_begun = False

    def begin(self) -> None:
        """The supervisor connects, and sends the session and the workers that live or are not recovered."""
        self.has_begun = True
        for worker in (*self.world.workers, *(dead for dead, _ in self.world.dead)):
            if worker.incarnation not in self.router.workers:
                self.router.restore(worker.incarnation, worker.held, self.world.now)
        self.state.restore(self.world.session, self.router.held())
        self.router.start()

    def deliver(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, ReadyAnswered):
                answer = self.asked.pop(event.number, None)
                if answer is not None:
                    self.posted.append(lambda event=event, answer=answer: answer(event.tasks, self.world.now))
            else:
                self.posted.append(lambda event=event: self.router.on_event(event))

    # -- what the router calls

    def ask(self, answer: Callable[..., None], **ready: Any) -> int:
        number = self.state.ask(**ready)
        self.asked[number] = answer
        return number

    def take_back(self, number: int) -> None:
        self.deliver(self.state.take_back(number))

    def report(self, result: m.Result) -> None:
        self.state.report(result, self.world.now)

    def tell_progress(self, report: m.Progress) -> None:
        self.state.tell_progress(report)

    def extend(self, ref: Ref, seconds: float) -> bool:
        return self.state.extend(ref, seconds)

    def release(self, claim: int, behind: int = 0) -> None:
        self.state.release(claim, behind)

    def declare(self, kinds: Iterable[m.KindPolicy]) -> None:
        kinds = list(kinds)
        self.world.kinds = {policy.kind: policy for policy in kinds}
        self.state.declare(kinds)
