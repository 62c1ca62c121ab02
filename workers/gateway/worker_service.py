"""WorkerService: one stream for each worker process, with any number of tasks at the same time.

It reads and writes messages. What they lead to is decided behind `coordinator.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.grpc_methods import server_handler
from jobherd.handlers._remote.schema import WORKER
from jobherd.workers.gateway import sessions, tasks
from jobherd.workers.gateway.access import Role
from jobherd.workers.gateway.actions import Status, TaskRef
from jobherd.workers.gateway.admission import NOT_A_MESSAGE, token_in_hello
from jobherd.workers.gateway.declaration import declaration_of
from jobherd.workers.gateway.incoming import Incoming, usable_seconds
from jobherd.workers.gateway.peer import MOST_BYTES, Worker, session_number
from jobherd.workers.gateway.results import rules_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.authentication import Authenticator
    from jobherd.workers.gateway.coordinator import Coordinator
    from jobherd.workers.gateway.peer import Peer

    Context = grpc.aio.ServicerContext[Any, Any]

LONGEST_NAME: Final = 100
LONGEST_STOPPING: Final = 3600.0
"""Most seconds for which a task may stay with its worker after its timeout."""
ENDING: Final = 2.0
"""Seconds for a client to receive the status with which its stream ends."""
LEAST_BYTES: Final = 64 << 10
"""A client that takes only smaller messages could receive few tasks, and is rejected."""


class HelloError(ValueError):
    """A Hello that is not valid. The text names the field."""


class WorkerService:
    """The service."""

    def __init__(self, coordinator: Coordinator, authenticator: Authenticator) -> None:
        self._coordinator = coordinator
        self._incoming = Incoming(coordinator)
        self._authenticator = authenticator

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""
        return server_handler(WORKER, {"Work": self._work}, unread=True)

    def wake(self) -> None:
        """Do nothing: the coordinator is woken."""

    async def drain(self) -> None:
        """Return once no worker has a task of this gateway. The coordinator has told them."""
        await self._coordinator.drained.wait()

    async def _work(self, requests: AsyncIterator[bytes], context: Context) -> None:
        peer = self._coordinator.connect()
        reader = asyncio.create_task(self._read(peer, requests, context))
        try:
            while (message := await peer.next()) is not None:
                if message.WhichOneof("event") == "tasks":
                    ready = message.tasks.ready
                    self._coordinator.handed(peer, ready)
                    await self._coordinator.metrics.write(peer, message, context.write(message))
                    self._coordinator.written(peer, ready)
                else:
                    await self._coordinator.metrics.write(peer, message, context.write(message))
        finally:
            self._coordinator.disconnect(peer)
            reader.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.AbortError):
                await reader
        await end(peer, context)

    async def _read(self, peer: Peer, requests: AsyncIterator[bytes], context: Context) -> None:
        """Take messages until the client ends the stream."""
        try:
            async for data in requests:
                self._coordinator.metrics.received()
                if not hasattr(peer, "worker"):
                    await self._greet(peer, data, context)
                    await peer.opened.wait()
                    continue
                self._incoming.receive(peer, m.WorkRequest.FromString(data))
                while peer.ending is None and (peer.is_full or not tasks.may_read(self._coordinator.state, peer.id)):
                    # HTTP/2 flow control then stops the client.
                    peer.eased.clear()
                    await peer.eased.wait()
        except DecodeError:
            # Not an error of this process, which gRPC would log with a traceback each time.
            self._coordinator.reject(peer, Status.INVALID_ARGUMENT, NOT_A_MESSAGE)
        finally:
            peer.close()

    async def _greet(self, peer: Peer, data: bytes, context: Context) -> None:
        token = token_in_hello(data)
        if token is None:
            self._coordinator.reject(peer, Status.FAILED_PRECONDITION, "the first message of a stream is Hello")
            return
        principal = await self._authenticator.admit(context, token=token, role=Role.WORK)
        hello = m.WorkRequest.FromString(data).hello
        try:
            worker = worker_of(hello, principal)
            session = session_number(hello.session)
        except HelloError as problem:
            self._coordinator.reject(peer, Status.INVALID_ARGUMENT, str(problem))
            return
        except ValueError:
            self._coordinator.reject(peer, Status.NOT_FOUND, "Hello.session is not one of this database")
            return
        held = tuple(TaskRef(ref.task_id, ref.claim) for ref in hello.held)
        self._coordinator.greet(peer, worker, sessions.Hello(principal.name, session, held))


async def end(peer: Peer, context: Context) -> None:
    """End a call with the status of its stream, if that has one."""
    if peer.ending is None:
        return
    status, why = peer.ending
    try:
        async with asyncio.timeout(ENDING):
            await context.abort(getattr(grpc.StatusCode, status.value), why)
    except TimeoutError:
        # The status waits behind messages that the client does not read. This resets the stream.
        raise asyncio.CancelledError from None


def worker_of(hello: m.Hello, principal: Principal, *, where: str = "Hello") -> Worker:
    """Return who a client is. Raises HelloError. where: the message that has the fields, for the error."""
    name = hello.worker_id or principal.name
    if len(name) > LONGEST_NAME or not name.isprintable():
        message = f"{where}.worker_id must have at most {LONGEST_NAME} printable characters"
        raise HelloError(message)
    most = hello.max_message_bytes or MOST_BYTES
    if most < LEAST_BYTES:
        message = f"{where}.max_message_bytes must be at least {LEAST_BYTES}, not {most}"
        raise HelloError(message)
    rules = {}
    for declared in hello.kinds:
        try:
            rules[check_kind(declared.kind)] = rules_of(declared)
        except (ValueError, TypeError) as problem:
            message = f"{where}, policy of {declared.kind[:LONGEST_NAME]!r}: {problem}"
            raise HelloError(message) from None
    client = "".join(each for each in hello.client if each.isprintable())[:LONGEST_NAME]
    stopping = min(usable_seconds(hello.stopping_seconds), LONGEST_STOPPING)
    return Worker(principal, name, client, rules, most, declaration_of(hello.kinds, rules, principal), stopping)
