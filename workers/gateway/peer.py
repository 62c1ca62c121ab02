"""One connected stream: the worker at its other end, and the messages that wait to be written to it.

A message waits here until the stream's writer takes it. A stream has at most one TaskBatch that is
not written for each of its Readys, and one acknowledgement, so a client that does not read costs a
bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway.access import narrow
from jobherd.workers.gateway.actions import Filter
from jobherd.workers.gateway.results import DEFAULT, KindRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.actions import Status
    from jobherd.workers.gateway.declaration import Declaration

MOST_WAITING: Final = 256
"""Messages that may wait for the writer. Then nothing more is read from the client."""
MOST_UNSETTLED: Final = 4 << 20
"""Bytes of results that may wait for their commit. The same follows."""
MOST_NAMES: Final = 1000
"""Kinds that a Ready may name, and queues."""
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_.:-]{0,99}\*?|\*")
MOST_BYTES: Final = 4 << 20
"""Bytes of a message that a client can receive if its Hello does not say it: gRPC's default."""


def session_number(text: str) -> int:
    """Return the number of the session that a client names; empty: 0. Raises ValueError."""
    number = int(text) if text else 0
    if not 0 <= number < 2**63:
        message = "it is not the number of a session"
        raise ValueError(message)
    return number


@dataclass(slots=True)
class Worker:
    """What a worker has declared in its Hello.

    Attributes:
        name: for people.
        rules: of kinds, by name.
        most_bytes: largest message that it can receive.
        declaration: what the database stores of its kinds.
        stopping: seconds that it needs to end a task after its timeout.
    """

    principal: Principal
    name: str
    client: str = ""
    rules: dict[str, KindRules] = field(default_factory=dict)
    most_bytes: int = MOST_BYTES
    declaration: Declaration | None = None
    stopping: float = 0.0

    def rules_of(self, kind: str) -> KindRules:
        """Return the rules of a kind."""
        return self.rules.get(kind, DEFAULT)

    def accepts(self, kinds: Sequence[str], queues: Sequence[str]) -> Filter | None:
        """Return what a Ready may get, or None if its principal may have none of it.

        Raises:
            ValueError: there are names that no kind or queue can have, or too many. They would make
                the database reject the claim, or slow it down, for the other workers too.
        """
        for names in (kinds, queues):
            if len(names) > MOST_NAMES:
                raise ValueError(f"a Ready has at most {MOST_NAMES} kinds and as many queues")
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{name[:100]!r} is not the name of a kind or queue, nor a prefix that ends in *")
        allowed_kinds = narrow(kinds, self.principal.kinds)
        allowed_queues = narrow(queues, self.principal.queues)
        if allowed_kinds is None or allowed_queues is None:
            return None
        return Filter(allowed_kinds, allowed_queues, self.principal.tenants)


class Peer:
    """A stream, or a call that claims as one.

    Attributes:
        id: its number in the bookkeeping.
        service: whose stream it is, for the metrics: `work` or `dispatch`.
        worker: who it is. Only valid once its Hello was accepted.
        ending: the status and the reason with which the stream ends; None: it continues.
        sizes: bytes of each TaskBatch that is not written, by its Ready.
        opened: set when the session is open, or the stream ends. Messages that came before would be lost.
        eased: set when there may be room again for what the client sends.
    """

    def __init__(self, number: int, service: str = "work") -> None:
        self.id = number
        self.service = service
        self.worker: Worker
        self.ending: tuple[Status, str] | None = None
        self.closed = False
        self.sizes: dict[int, int] = {}
        self.opened = asyncio.Event()
        self.eased = asyncio.Event()
        self._unsettled: dict[int, int] = {}
        """By ResultBatch: its bytes, until it is acknowledged."""
        self._news = asyncio.Event()
        self._outgoing: deque[m.WorkResponse] = deque()
        self._writer: asyncio.Task[Any] | None = None
        """The task that waits for a write."""
        self._ack: m.ResultAck | None = None
        self._refusals: dict[int, list[m.Refusal]] = {}
        """By ResultBatch: what its acknowledgement will say."""

    def send(self, message: m.WorkResponse) -> None:
        """Send a message once the writer gets to it."""
        self._outgoing.append(message)
        self._news.set()

    def end(self, status: Status, why: str) -> None:
        """End the stream. What waits is discarded."""
        self.ending = status, why
        self._news.set()
        self.opened.set()
        self.eased.set()
        if self._writer is not None:
            self._writer.cancel()

    async def write(self, writing: Awaitable[None]) -> None:
        """Wait until gRPC has taken a message, or the stream ends: a client that does not read takes none."""
        self._writer = asyncio.current_task()
        try:
            await writing
        except asyncio.CancelledError:
            if self.ending is None or self._writer is None:
                raise
            self._writer.uncancel()
        finally:
            self._writer = None

    def close(self) -> None:
        """End the writer: the client has ended the stream."""
        self.closed = True
        self._news.set()

    def note_results(self, batch: int, size: int) -> None:
        """Count a ResultBatch that has arrived, until it is acknowledged."""
        self._unsettled[batch] = size

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that nothing more may be read from the client."""
        return len(self._outgoing) >= MOST_WAITING or sum(self._unsettled.values()) > MOST_UNSETTLED

    def refuse(self, batch: int, refusal: m.Refusal) -> None:
        """Let the acknowledgement of a ResultBatch say that one of its results was refused."""
        self._refusals.setdefault(batch, []).append(refusal)

    def acknowledge(self, up_to: int) -> None:
        """Acknowledge results. It may travel with the next TaskBatch."""
        if self._ack is None:
            self._ack = m.ResultAck()
        self._ack.up_to = up_to
        for batch in [number for number in self._refusals if number <= up_to]:
            self._ack.refusals.extend(self._refusals.pop(batch))
        for batch in [number for number in self._unsettled if number <= up_to]:
            del self._unsettled[batch]
        self._news.set()
        self.eased.set()

    async def next(self) -> m.WorkResponse | None:
        """Return the next message, or None if the stream ends."""
        while True:
            if self.ending is not None or self.closed:
                return None
            ack = self._ack
            if self._outgoing:
                message = self._outgoing.popleft()
                self.eased.set()
                if ack is not None and message.WhichOneof("event") == "tasks":
                    message.tasks.ack.CopyFrom(ack)
                    self._ack = None
                return message
            if ack is not None:
                self._ack = None
                return m.WorkResponse(result_ack=ack)
            self._news.clear()
            await self._news.wait()


class TaskPeer(Peer):
    """A stream whose client sends no Readys: the gateway asks for tasks while it has room.

    Attributes:
        accepts: what it gets.
        lease: of each task, in seconds. 0: the setting.
    """

    def __init__(self, number: int, service: str, accepts: Filter, lease: float) -> None:
        super().__init__(number, service)
        self.accepts = accepts
        self.lease = lease
