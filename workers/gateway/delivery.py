"""Sends claimed tasks to their streams, within what the client can receive, and counts what waits.

A message that is too large would end the stream, and again after each reconnect. So a task that no
message can carry is not sent.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway import judge
from jobherd.workers.gateway.actions import TaskRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from jobherd.workers.gateway.actions import SendTasks
    from jobherd.workers.gateway.judge import Judged
    from jobherd.workers.gateway.peer import Peer

BATCH_BYTES: Final = 3 << 20
"""Bytes of a TaskBatch with several tasks."""
FRAME: Final = 1024
"""Bytes of a message besides its tasks, at most."""


class Delivery:
    """The tasks that are on their way to streams.

    Attributes:
        unsent: bytes that wait for their write.
    """

    def __init__(self) -> None:
        self.unsent = 0
        self._claimed: Mapping[int, m.WorkResponse] = {}

    @contextmanager
    def of(self, claimed: Mapping[int, m.WorkResponse]) -> Iterator[None]:
        """Let `send` find the messages with the tasks of a claim, by fencing token."""
        self._claimed = claimed
        yield
        self._claimed = {}

    def send(self, peer: Peer, action: SendTasks, *, lease: float) -> tuple[list[TaskRef], Judged]:
        """Send the tasks of a share to its stream. Return what did not fit.

        lease: of each task, in seconds. The first result is to be released. The second is too large
        for this client, with what to record.
        """
        most = peer.worker.most_bytes - FRAME
        message = self._claimed[action.claim] if action.claim else m.WorkResponse()
        message.tasks.ready = action.ready
        for task in message.tasks.tasks:
            timeout = task.timeout_seconds
            task.lease_seconds = timeout if 0 < timeout < lease else lease
        over: list[TaskRef] = []
        too_large: list[m.Task] = []
        if message.ByteSize() > min(most, BATCH_BYTES):
            fit, over, too_large = fitting(message.tasks.tasks, most)
            # Cost: this copies each task. Usually all fit.
            message = m.WorkResponse(tasks=m.TaskBatch(ready=action.ready, tasks=fit))
        peer.sizes[action.ready] = message.ByteSize()
        self.unsent += peer.sizes[action.ready]
        peer.send(message)
        return over, judge.too_large(too_large, peer.worker.most_bytes) if too_large else {}

    def written(self, peer: Peer, ready: int) -> None:
        """A TaskBatch was written."""
        self.unsent -= peer.sizes.pop(ready, 0)

    def forget(self, peer: Peer) -> None:
        """The stream ends: what waits for it is not sent."""
        self.unsent -= sum(peer.sizes.values())
        peer.sizes.clear()


def fitting(tasks: Iterable[m.Task], most: int) -> tuple[list[m.Task], list[TaskRef], list[m.Task]]:
    """Return the tasks that fit into a message together, those left over, and those too large for any.

    most: bytes that the client can receive. Several tasks have at most `BATCH_BYTES` together.
    """
    fit: list[m.Task] = []
    over: list[TaskRef] = []
    too_large: list[m.Task] = []
    used = 0
    for task in tasks:
        size = task.ByteSize() + 8
        if size > most:
            too_large.append(task)
        elif over or (fit and used + size > min(most, BATCH_BYTES)):
            over.append(TaskRef(task.id, task.claim))
        else:
            used += size
            fit.append(task)
    return fit, over, too_large
