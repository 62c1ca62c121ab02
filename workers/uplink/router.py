"""Connects workers and supervisor with the stream to the gateway: who gets and who reports what.

No I/O and no clock. It is called in one thread; `now` is monotonic and an argument.

A worker asks with a Ready, and gets exactly one TaskBatch for it, which has tasks. Its settlements
are ResultBatches, each answered once all its results are recorded or lost. The supervisor says what
is to happen with the tasks of a dead worker, in the statements that it would send to a database.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.events import (
    Event,
    ReadyRejected,
    Ref,
    ReleaseRequested,
    ResultRejected,
    ResultsConfirmed,
    Stop,
    TaskStopped,
)
from jobherd.handlers._remote.outcomes import rejected
from jobherd.workers.remote.results import acknowledgement, released, results_of, suspected
from jobherd.workers.uplink.worker_tasks import NEVER, WorkerTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jobherd.workers.uplink.stream import Link, Stream

    Rows = list[list[str | None]]
    Answer = Callable[[Rows | None], None]

_log = logging.getLogger("jobherd.uplink")

UNKNOWN_LEASE: Final = 60.0
"""Lease of a task that an earlier uplink has received."""


@dataclass(eq=False, slots=True)
class _Asked:
    link: Link | None
    """None: the worker is gone."""
    ready: m.Ready
    number: int = 0
    """On the stream."""


class Router:
    """The bookkeeping of an uplink.

    Args:
        stream: the stream.
        tell: sends an event to the supervisor.
        stopping: seconds that this host may need to end a job after its timeout.

    Attributes:
        rejected: why the gateway allows none of these jobs. Empty: it does.
        has_started: whether the stream was opened. Until then, what workers say that they hold is
            believed.
        kinds: what was declared, by kind.
    """

    def __init__(self, stream: Stream, tell: Callable[[dict[str, object]], None], *, stopping: float) -> None:
        self.rejected = ""
        self.has_started = False
        self._stream, self._tell, self._stopping = stream, tell, stopping
        self._tasks = WorkerTasks()
        self._links: dict[int, Link] = {}
        self._asked: dict[int, _Asked] = {}
        """Readys without an answer, by worker."""
        self._withdrawn: set[_Asked] = set()
        """Readys that were taken back. Their answers can still bring tasks."""
        self._early: dict[Ref, m.Result] = {}
        """Results that were reported before `start`, for which no stream could have a session."""
        self._leaving = False
        self.kinds: dict[str, m.KindPolicy] = {}

    @property
    def workers(self) -> set[int]:
        """The connected workers."""
        return set(self._links)

    @property
    def is_settled(self) -> bool:
        """Whether no task is with a worker or on its way, and no result is awaited."""
        return self._tasks.is_empty and not self._withdrawn

    @property
    def is_busy(self) -> bool:
        """Whether a worker has a task."""
        return self._tasks.has_open

    @property
    def waiting(self) -> int:
        """The number of workers that wait for tasks."""
        return len(self._asked)

    # -- workers

    def on_request(self, link: Link, request: m.WorkRequest, now: float) -> None:
        """A worker has sent a message."""
        match request.WhichOneof("event"):
            case "hello":
                self._greet(link, request.hello, now)
            case "ready" if link.child and link.child not in self._asked and not self._leaving:
                asked = self._asked[link.child] = _Asked(link, request.ready)
                self._ask(asked)
            case "progress":
                self._stream.tell_progress(request.progress)
            case "results":
                batch = request.results
                self._report(batch.results, lambda lost: link.send(acknowledgement(batch.number, lost)))

    def restore(self, child: int, held: Iterable[Ref], now: float) -> None:
        """Take the tasks that a worker has from an earlier uplink. They are extended at once."""
        self._tasks.add(child, held, lease=UNKNOWN_LEASE, now=now - UNKNOWN_LEASE)

    def leave(self, link: Link) -> None:
        """The connection to a worker has ended. Its tasks stay until the supervisor says what becomes of them."""
        if self._links.get(link.child) is not link:
            return
        del self._links[link.child]
        self._withdraw(link.child)

    def stop_asking(self) -> None:
        """Take all Readys back: this process leaves."""
        self._leaving = True
        for child in list(self._asked):
            self._withdraw(child)

    def _withdraw(self, child: int) -> None:
        asked = self._asked.pop(child, None)
        if asked is not None:
            asked.link = None
            self._withdrawn.add(asked)
            self._stream.take_back(asked.number)

    def _greet(self, link: Link, hello: m.Hello, now: float) -> None:
        link.child = int(hello.worker_id)
        if (old := self._links.get(link.child)) is not None:
            self.leave(old)
        self._links[link.child] = link
        held = [Ref(one.task_id, one.claim) for one in hello.held]
        if not self.has_started:
            self.restore(link.child, held, now)
        known = self._tasks.open_of(link.child)
        # Their TaskBatch has not reached the worker.
        self._abandon(ref for ref in known if ref not in held)
        for ref in held:
            if ref not in known:
                self._tell_about("lost", link.child, ref)
        kinds = {policy.kind: policy for policy in hello.kinds}
        if any(self.kinds.get(kind) != policy for kind, policy in kinds.items()):
            self.kinds |= kinds
            self._stream.declare(list(self.kinds.values()))
        link.send(m.WorkResponse(hello_ack=m.HelloAck()))

    def _ask(self, asked: _Asked) -> None:
        ready = asked.ready
        asked.number = self._stream.ask(
            lambda tasks, now: self._on_tasks(asked, tasks, now),
            kinds=ready.kinds,
            queues=ready.queues,
            count=ready.count,
            lease=ready.lease_seconds,
        )

    def _report(self, results: Iterable[m.Result], done: Callable[[set[Ref]], None]) -> None:
        by_ref = {Ref(result.task_id, result.claim): result for result in results}
        for ref in self._tasks.report(list(by_ref), done):
            if self.has_started:
                self._stream.report(by_ref[ref])
            else:
                self._early[ref] = by_ref[ref]

    # -- the stream

    def _on_tasks(self, asked: _Asked, tasks: Sequence[m.Task], now: float) -> None:
        if asked.link is None:
            self._withdrawn.discard(asked)
            for claim in {task.claim for task in tasks}:
                self._stream.release(claim)
        elif not tasks:
            self._ask(asked)  # The gateway drains. The next one gets this Ready.
        else:
            del self._asked[asked.link.child]
            for task in tasks:
                until = now + task.timeout_seconds + self._stopping if task.timeout_seconds else NEVER
                lease = task.lease_seconds or UNKNOWN_LEASE
                self._tasks.add(asked.link.child, [Ref(task.id, task.claim)], lease=lease, now=now, until=until)
            asked.link.send(m.WorkResponse(tasks=m.TaskBatch(ready=asked.ready.number, tasks=tasks)))

    def on_event(self, event: Event) -> None:
        """Handle an event of the stream other than the answer to a Ready."""
        match event:
            case ResultsConfirmed(refs=refs):
                for ref in refs:
                    self._tasks.end(ref, lost=False)
            case ResultRejected():
                self._on_rejected(event)
            case TaskStopped(ref=ref, why=Stop.LOST):
                if child := self._tasks.end(ref, lost=True):
                    self._tell_about("lost", child, ref)
            case TaskStopped(ref=ref, why=Stop.CANCELLED):
                if child := self._tasks.child_of(ref):
                    self._tell_about("cancel", child, ref)
            case ReleaseRequested():
                self._tell({"event": "release_rest"})
            case ReadyRejected(message=message):
                self.rejected = message

    def _on_rejected(self, event: ResultRejected) -> None:
        result = event.result
        _log.error("gateway rejected a result  job=%d: %s", result.task_id, event.message)
        if event.again and not result.failed.poison:
            self._stream.report(rejected(result, event.message))
        else:
            self._tasks.end(Ref(result.task_id, result.claim), lost=event.lost or event.again)

    def extend(self, now: float) -> None:
        """Extend the tasks whose lease is due. Not before `start`: the stream would ignore it."""
        for ref, seconds in self._tasks.due(now) if self.has_started else ():
            self._stream.extend(ref, seconds)

    def wake_at(self) -> float:
        """Return when `extend` has something to do."""
        return self._tasks.wake_at() if self.has_started else NEVER

    def held(self) -> list[Ref]:
        """Return what `start` needs the stream to hold: open tasks, and those whose results wait for it."""
        return [*self._tasks.open(), *self._early]

    def start(self) -> None:
        """The stream continues the session, and holds `held`: report what has waited for that."""
        self.has_started = True
        while self._early:
            self._stream.report(self._early.pop(next(iter(self._early))))

    # -- the supervisor

    def carry_out(self, name: str, parameters: Mapping[str, Any], answer: Answer) -> bool:
        """Carry out a statement of the supervisor, and call `answer` with its rows. Return False if it is unknown."""
        match name:
            case "recover/terminate_child_sessions":
                if (link := self._links.get(parameters["incarnation"])) is not None:
                    self.leave(link)
                    link.close()
                answer([["0", None]])
            case "settle/settle_jobs":
                reports, jobs, token = results_of(parameters), parameters["ids"], parameters["token"]
                for _, progress in reports:
                    if progress is not None:
                        self._stream.tell_progress(progress)
                self._report(
                    (result for result, _ in reports),
                    lambda lost: answer([[str(job)] for job in jobs if Ref(job, token) not in lost]),
                )
            case "recover/requeue_child":
                answer(self._requeue(self._tasks.open_of(parameters["incarnation"]), parameters))
            case "recover/requeue_rest":
                answer(_rows(self._abandon(self._rest(**parameters))))
            case _:
                return False
        return True

    def _requeue(self, refs: list[Ref], parameters: Mapping[str, Any]) -> Rows:
        cleared = parameters["cleared"]
        suspects = [ref for ref in refs if cleared is not None and ref.claim not in cleared]
        self._report((suspected(*ref, parameters["error"] or "") for ref in suspects), _do_nothing)
        self._abandon(self._tasks.open_of(parameters["incarnation"]))
        return _rows(refs)

    def _rest(self, child: int, token: int, job: int, called: Sequence[int] | None) -> list[Ref]:
        claim = self._tasks.open_of(child, token)
        running = Ref(job, token)
        behind = claim[claim.index(running) + 1 :] if running in claim else []
        return [ref for ref in behind if ref.task not in (called or ())]

    def _abandon(self, refs: Iterable[Ref]) -> list[Ref]:
        """Release tasks that were not started, and return them."""
        gone = list(refs)
        self._report((released(*ref) for ref in gone), _do_nothing)
        return gone

    def _tell_about(self, event: str, child: int, ref: Ref) -> None:
        self._tell({"event": event, "incarnation": child, "token": ref.claim, "job": ref.task})


def _rows(refs: Iterable[Ref]) -> Rows:
    return [[str(ref.task)] for ref in refs]


def _do_nothing(_lost: set[Ref]) -> None:
    return
