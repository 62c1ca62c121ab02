"""The state of a remote worker's session, and which message is sent next.

A Ready asks the gateway for tasks. No I/O and no grpc: `now` is monotonic and an argument. `client.py`
sends and receives the messages, for a process with threads; `workers/uplink/` does it without.

Invariants:
- Each Ready is answered exactly once, whatever happens to the stream.
- A task is held until its result is confirmed, until it is released, or until it is lost. `hello`
  names what is held.
- A result is sent again on each new stream until it is confirmed. The gateway records it once.
- Messages are made when the stream can take them, so that what waits together is sent together.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages
from jobherd.handlers._remote.events import (
    Event,
    ReadyAnswered,
    ReadyRejected,
    Ref,
    ReleaseRequested,
    ResultRejected,
    ResultsConfirmed,
    Stop,
    TaskStopped,
)
from jobherd.handlers._remote.held_tasks import HeldTasks
from jobherd.handlers._remote.lease_upkeep import LeaseUpkeep

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_UNCONFIRMED: Final = 256
"""ResultBatches without a confirmation, at which the client sends no results and no Readys."""
MOST_TASKS: Final = 500
"""Tasks of one Ready."""
_STOPS: Final = {
    messages.Cancel.REASON_CANCELLED: Stop.CANCELLED,
    messages.Cancel.REASON_TIMEOUT: Stop.TIMEOUT,
    messages.Cancel.REASON_LOST: Stop.LOST,
}


class ClientState:
    """The state of one session over any number of streams.

    Args:
        hello: what each Hello contains besides the session.
    """

    def __init__(self, hello: messages.Hello) -> None:
        self._hello = hello
        self._tasks = HeldTasks()
        self._upkeep = LeaseUpkeep()
        self._readys: dict[int, messages.Ready] = {}
        self._last_ready = 0
        self._unsent: deque[int] = deque()
        """Readys that are not sent on this stream, in ascending order."""
        self._asked = 0
        """Tasks that the sent Readys ask for."""
        self._withdrawn: dict[int, bool] = {}
        """Sent Readys that were taken back, and whether that was sent."""
        self._releases: deque[messages.Release] = deque()
        self._sent: dict[int, list[Ref]] = {}
        """Results of this stream that are not confirmed, by the number of their batch."""
        self._last_batch = 0
        self._slots = 0
        self.session = ""
        self.is_open = False
        """Whether HelloAck has arrived on the present stream."""
        self.draining = False
        """Whether the gateway of the present stream stops."""

    @property
    def session_until(self) -> float:
        """Time until which no other worker gets the tasks. Work that must not run twice ends before."""
        return self._upkeep.session_until

    @property
    def is_settled(self) -> bool:
        """Whether no task is held."""
        return self._tasks.is_empty

    # What the worker does.

    def ask(self, *, kinds: Sequence[str], queues: Sequence[str], count: int, lease: float) -> int:
        """Ask for tasks. Returns the number of the Ready."""
        self._last_ready += 1
        number = self._last_ready
        self._readys[number] = messages.Ready(
            number=number, kinds=kinds, queues=queues, count=min(count, MOST_TASKS), lease_seconds=lease
        )
        self._unsent.append(number)
        return number

    def take_back(self, number: int) -> list[Event]:
        """Take a Ready back, if it is not answered. Its answer can still bring tasks."""
        if number not in self._readys or number in self._withdrawn:
            return []
        if number in self._unsent:
            self._unsent.remove(number)
            del self._readys[number]
            return [ReadyAnswered(number)]
        self._withdrawn[number] = False
        return []

    def report(self, result: messages.Result, now: float) -> bool:
        """Report a result. Returns False if the task is not held any more."""
        return self._tasks.report(result, now)

    def extend(self, ref: Ref, seconds: float) -> bool:
        """Ask for a longer lease. Returns False if the task is not held any more."""
        if not self._tasks.is_open(ref):
            return False
        self._upkeep.extend(ref, seconds)
        return True

    def release(self, claim: int, behind: int = 0) -> None:
        """Release the open tasks of a claim that come after a task, or all of them."""
        if self._tasks.release(claim, behind):
            self._releases.append(messages.Release(claim=claim, behind_task_id=behind))

    # What happens to the stream.

    def hello(self) -> messages.Hello:
        """Return the first message of a new stream."""
        message = messages.Hello()
        message.CopyFrom(self._hello)
        message.session = self.session
        message.held.extend(messages.TaskRef(task_id=ref.task, claim=ref.claim) for ref in self._tasks.held())
        self._releases.clear()  # the gateway releases what `held` does not name
        return message

    def on_break(self) -> list[Event]:
        """Prepare for the next stream: it repeats the Readys, results and heartbeats without answer."""
        self.is_open = self.draining = False
        answered: list[Event] = [ReadyAnswered(number) for number in self._withdrawn]
        for number in self._withdrawn:
            del self._readys[number]
        self._withdrawn.clear()
        self._unsent = deque(self._readys)
        self._asked = 0
        self._tasks.send_again(ref for refs in self._sent.values() for ref in refs)
        self._sent.clear()
        self._last_batch = 0
        self._upkeep.on_break(self._tasks)
        return answered

    def on_session_over(self) -> list[Event]:
        """Forget the session, which no gateway has any more. All its tasks are lost."""
        self.session = ""
        self._releases.clear()
        lost, self._tasks = self._tasks.held(), HeldTasks()
        return [TaskStopped(ref, Stop.LOST) for ref in lost]

    def on_response(self, response: messages.WorkResponse, now: float) -> list[Event]:
        """Take one message of the gateway and return what follows for the worker."""
        match response.WhichOneof("event"):
            case "hello_ack":
                return self._on_hello_ack(response.hello_ack, now)
            case "tasks":
                return self._on_tasks(response.tasks)
            case "result_ack":
                return self._on_confirmed(response.result_ack)
            case "heartbeat_ack":
                ack = response.heartbeat_ack
                self._upkeep.on_ack(ack.number, ack.session_seconds)
                return self._lose(ack.lost)
            case "cancel":
                return self._on_cancel(response.cancel)
            case "release_rest":
                return [ReleaseRequested()]
            case "drain":
                self.draining = True
            case "refusal" if response.refusal.ready in self._readys:
                return [*self._answer(response.refusal.ready), ReadyRejected(response.refusal.message)]
        return []

    def _on_hello_ack(self, ack: messages.HelloAck, now: float) -> list[Event]:
        events: list[Event] = []
        if self.session and ack.session != self.session:
            events += self.on_session_over()
        self.session, self._slots, self.is_open = ack.session, ack.max_slots, True
        self._upkeep.on_open(ack.session_seconds, now)
        return events + self._lose(ack.lost)

    def _on_tasks(self, batch: messages.TaskBatch) -> list[Event]:
        events = self._on_confirmed(batch.ack) if batch.HasField("ack") else []
        for task in batch.tasks:
            self._tasks.add(Ref(task.id, task.claim))
        if batch.ready in self._readys:
            events += self._answer(batch.ready, batch.tasks)
        else:
            # No Ready waits for them: without a release they would wait for their leases.
            for claim in {task.claim for task in batch.tasks}:
                self.release(claim)
        return events

    def _answer(self, number: int, tasks: Sequence[messages.Task] = ()) -> list[Event]:
        ready = self._readys.pop(number)
        self._withdrawn.pop(number, None)
        if number in self._unsent:
            self._unsent.remove(number)
        else:
            self._asked -= ready.count
        return [ReadyAnswered(number, tasks)]

    def _on_confirmed(self, ack: messages.ResultAck) -> list[Event]:
        refused = {Ref(one.task.task_id, one.task.claim): one for one in ack.refusals}
        events: list[Event] = []
        confirmed: list[Ref] = []
        for number in [number for number in self._sent if number <= ack.up_to]:
            for ref in self._sent.pop(number):
                result = self._tasks.confirm(ref)
                refusal = refused.get(ref)
                if result is None:
                    continue
                if refusal is None:
                    confirmed.append(ref)
                    continue
                again = refusal.reason == messages.Refusal.REASON_INVALID
                if again:
                    self._tasks.add(ref)
                lost = refusal.reason == messages.Refusal.REASON_LOST
                events.append(ResultRejected(result, again, refusal.message, lost))
        return [*events, ResultsConfirmed(confirmed)] if confirmed else events

    def _on_cancel(self, cancel: messages.Cancel) -> list[Event]:
        why = _STOPS.get(cancel.reason)
        if why is Stop.LOST:
            # Race: the gateway ignores the Readys of a silent worker until its next message.
            self._upkeep.beat_now()
            return self._lose([cancel.task])
        ref = Ref(cancel.task.task_id, cancel.task.claim)
        return [TaskStopped(ref, why)] if why is not None and self._tasks.is_open(ref) else []

    def _lose(self, lost: Sequence[messages.TaskRef]) -> list[Event]:
        refs = [Ref(one.task_id, one.claim) for one in lost]
        return [TaskStopped(ref, Stop.LOST) for ref in refs if self._tasks.lose(ref)]

    # What is sent.

    def wake_at(self) -> float:
        """Return the time at which `next_request` has something to send without a further event."""
        return min(self._upkeep.beat_at, self._tasks.due_at()) if self.is_open else float("inf")

    @property
    def has_due_results(self) -> bool:
        """Whether a result waits only for the stream."""
        return self._tasks.has_due

    def next_request(self, now: float) -> messages.WorkRequest | None:
        """Return the next message of this stream, or None if there is none now."""
        if not self.is_open:
            return None
        beat = self._upkeep.next_heartbeat(now)
        if beat is not None:
            return messages.WorkRequest(heartbeat=beat)
        if len(self._sent) >= MOST_UNCONFIRMED:
            return None
        refs = self._tasks.next_results(now)
        if refs:
            return messages.WorkRequest(results=self._result_batch(refs))
        if self._releases:  # Order: a result that was reported before the release must arrive before it
            return messages.WorkRequest(release=self._releases.popleft())
        for number, sent in self._withdrawn.items():
            if not sent:
                self._withdrawn[number] = True
                return messages.WorkRequest(ready=messages.Ready(number=number))
        ready = self._next_ready()
        return None if ready is None else messages.WorkRequest(ready=ready)

    def _result_batch(self, refs: list[Ref]) -> messages.ResultBatch:
        self._last_batch += 1
        self._sent[self._last_batch] = refs
        results = [self._tasks.result(ref) for ref in refs]
        return messages.ResultBatch(number=self._last_batch, results=results, ready=self._next_ready())

    def _next_ready(self) -> messages.Ready | None:
        if not self._unsent or self.draining or self._releases:
            return None
        ready = self._readys[self._unsent[0]]
        if self._slots:
            room = self._slots - self._asked - self._tasks.count
            if room < 1:
                return None  # the gateway ends the stream of a worker that asks for more than its slots
            ready.count = min(ready.count, room)
        self._unsent.popleft()
        self._asked += ready.count
        return ready
