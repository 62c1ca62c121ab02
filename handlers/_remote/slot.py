"""One slot of a remote worker: a thread that asks for tasks and runs them one after another."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from jobherd.handlers._remote.events import Ref, Stop
from jobherd.handlers._remote.outcomes import cancelled, expired, rejected, result_of, unreadable
from jobherd.handlers._remote.task import Task
from jobherd.handlers._values.outcome import Raised
from jobherd.handlers._values.payload import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._remote import messages
    from jobherd.handlers._remote.client import Client
    from jobherd.handlers._remote.events import ResultRejected

Handler: TypeAlias = "Callable[[Task], object]"

log = logging.getLogger("jobherd.remote")


class Slot:
    """Runs the tasks of one Ready after another, until it is stopped.

    Args:
        client: the session.
        handler: runs one task. It must be safe to call from several threads.
        kinds, queues, count, lease: what each Ready asks for.
        name: name of the thread.
    """

    def __init__(
        self,
        client: Client,
        handler: Handler,
        *,
        kinds: Sequence[str],
        queues: Sequence[str],
        count: int,
        lease: float,
        name: str,
    ) -> None:
        self._client, self._handler = client, handler
        self._kinds, self._queues, self._count, self._lease = kinds, queues, count, lease
        self._inbox: SimpleQueue[Sequence[messages.Task]] = SimpleQueue()
        self._lock = threading.Lock()
        """Guards the attributes below. Taken before the client's lock, never after it."""
        self._ready = 0
        self._pending: deque[Task] = deque()
        """Tasks that have not started, in their order."""
        self._running: Task | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for no more tasks, release what has not started, and let the running task finish."""
        with self._lock:
            self._stopping = True
            self._inbox.put(())  # it does not wait for a gateway that does not answer
            ready = self._ready
        self.release()
        if ready:
            self._client.take_back(ready)

    def join(self) -> None:
        """Wait until the running task has finished."""
        self._thread.join()

    def release(self) -> None:
        """Release the tasks that have not started."""
        with self._lock:
            self._release_pending()

    def stop_task(self, ref: Ref, why: Stop) -> bool:
        """Pass on that a task must stop. Returns False if the slot does not have it."""
        with self._lock:
            for task in (self._running, *self._pending):
                if task is not None and task.ref == ref:
                    task.stop(why)
                    return True
        return False

    def lose_tasks(self) -> None:
        """Stop all tasks: no gateway will accept their results."""
        with self._lock:
            for task in (self._running, *self._pending):
                if task is not None:
                    task.stop(Stop.LOST)

    def _answered(self, tasks: Sequence[messages.Task]) -> None:
        """Take the answer to a Ready. Tasks that come after `stop` are released."""
        with self._lock:
            if not self._stopping:
                self._inbox.put(tasks)
            elif tasks:
                self._client.release(tasks[0].claim)

    def _run(self) -> None:
        last: messages.Result | None = None
        while self._ask(last):
            last = None
            received = self._inbox.get()
            with self._lock:
                self._ready = 0
                self._pending.extend(Task(one, self._client.extend) for one in received)
            while (task := self._next()) is not None:
                if last is not None:
                    self._client.report(last)
                last = self._attempt(task)

    def _ask(self, result: messages.Result | None) -> bool:
        """Report the last result of a batch and ask for the next one. Returns False at the end."""
        with self._lock:
            if not self._stopping:
                self._ready = self._client.ask(
                    self._answered,
                    kinds=self._kinds,
                    queues=self._queues,
                    count=self._count,
                    lease=self._lease,
                    result=result,
                )
                return True
        if result is not None:
            self._client.report(result)
        return False

    def _release_pending(self) -> None:
        if self._pending:
            self._client.release(self._pending[0].token, self._running.id if self._running else 0)
            self._pending.clear()

    def _next(self) -> Task | None:
        with self._lock:
            if self._stopping:
                self._release_pending()  # `stop` came between their arrival and this
            self._running = self._pending.popleft() if self._pending else None
            return self._running

    def _attempt(self, task: Task) -> messages.Result | None:
        """Run a task and return its Result. None: it was lost before it started."""
        if task.stopped is not None:
            return None if task.stopped is Stop.LOST else cancelled(task.ref)
        if task.expired:
            return expired(task.ref)
        try:
            task.decode()
        except PayloadError as problem:
            return unreadable(task.ref, problem)
        started = time.monotonic()
        ending: object
        try:
            ending = self._handler(task)
        except BaseException as raised:  # whatever a handler raises is the outcome of its attempt
            ending = Raised(raised)
        return result_of(task.ref, ending, ran=time.monotonic() - started, stop=task.stopped)


def report_rejected(client: Client, event: ResultRejected) -> None:
    """Log that the gateway did not record a result, and report a failure if the task is open again."""
    result = event.result
    log.error("gateway rejected a result  job=%d: %s", result.task_id, event.message)
    if event.again and not (result.WhichOneof("outcome") == "failed" and result.failed.poison):
        client.report(rejected(result, event.message))
