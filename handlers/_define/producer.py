"""The typed way into the queue: `receipt.enqueue(order_id=7)` takes what the handler takes.

A producer is a handler's name and signature with options for its jobs. It imports no more of a handler than its definition, and it
sends exactly the arguments it was given: defaults are the handler's, at the time the job runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias

import psycopg

from jobherd.handlers._define.signature import BYTES
from jobherd.handlers._enqueue import bulk, default, send
from jobherd.handlers._enqueue import options as _enqueue
from jobherd.handlers._enqueue.async_client import AsyncClient
from jobherd.handlers._enqueue.bulk import Chunk, sealed
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._values.payload import check_bytes, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from jobherd.handlers._define.signature import Binding, Signature
    from jobherd.handlers._enqueue.options import Options
    from jobherd.handlers._policy.durations import Duration

P = ParamSpec("P")

_ARGUMENTS: Final = (dict, tuple)
Target: TypeAlias = "Client | AsyncClient | psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


class _Document(dict[str, Any]):
    """A payload that `payload` has made: it is JSON, and was compared with its arguments already."""


class Producer(Generic[P]):
    """Enqueues jobs of one kind. A `Handler` is one; `Handler.options` makes others.

    kind: the handler's name. signature: what its jobs are called with. options: for its jobs. target: where they are enqueued,
    default the process-wide client. weigh: what a job costs, from its payload. seal: whether payloads are encrypted.
    """

    def __init__(
        self,
        kind: str,
        signature: Signature,
        options: Options,
        target: Target | None = None,
        *,
        weigh: Callable[[Any], Mapping[str, float]] | None = None,
        seal: bool = False,
    ) -> None:
        self.kind = kind
        self._weigh = weigh
        self._seal = seal
        self.signature = signature
        self._options = options
        self._target = target

    @property
    def binding(self) -> Binding:
        """What turns payloads into arguments. Made at the first use, when every name in the annotations exists."""
        return self.signature.binding

    def options(  # one parameter for each option
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        good_until: datetime | None = None,
        cost: Mapping[str, float] | None = None,
        tenant: str | None = None,
        webhook: str | None = None,
        set_off_by: int | None = None,
        traceparent: str | None = None,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = None,
        client: Client | AsyncClient | None = None,
    ) -> Producer[P]:
        """Return a producer whose jobs differ in these options; what is not given stays as it is.

        queue: where they wait. priority: lower numbers first, may be negative.
        delay: a span of time before they may run ("10m", seconds, timedelta). run_at: the moment instead, a datetime with a zone.
        max_attempts: before they fail for good. timeout: a span of time for one attempt.
        good_until: a datetime with a zone after which they are not started any more.
        cost: what each takes of its host while it runs, amounts by name.
        tenant: whose jobs they are. webhook: a URL that is told of each one's end.
        set_off_by: the id of the job that they come from, default the one whose handler this runs in.
        traceparent: the trace that they belong to, as W3C Trace Context writes it, default that of the job whose handler this runs in.
        connection: a psycopg connection of your own; the jobs are part of its transaction. client: another client.
        Raises ValueError or TypeError that name the field, the value and the remedy.

        >>> receipt.options(delay="10m", priority=-5).enqueue(order_id=7)  # doctest: +SKIP
        42
        """
        if connection is not None and client is not None:
            message = "connection and client exclude each other: give one of them"
            raise ValueError(message)
        _check_target(connection, "connection", "a connection of psycopg", psycopg.Connection, psycopg.AsyncConnection)
        _check_target(client, "client", "a Client or an AsyncClient", Client, AsyncClient)
        given = _enqueue.check_options(
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            max_attempts=max_attempts,
            timeout=timeout,
            good_until=good_until,
            cost=cost,
            tenant=tenant,
            webhook=webhook,
            set_off_by=set_off_by,
            traceparent=traceparent,
        )
        return Producer(
            self.kind,
            self.signature,
            _merged(self._options, given),
            connection or client or self._target,
            weigh=self._weigh,
            seal=self._seal,
        )

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """Return the payload that a call with these arguments stands for, checked: for `enqueue_many`, and for tests.

        >>> receipt.payload(order_id=7)  # doctest: +SKIP
        {'order_id': 7}
        """
        found = decode_payload(self._encoded(self.signature.payload(args, self.split_bytes(args, kwargs)[1])))
        return _Document(found) if isinstance(found, dict) else found

    def split_bytes(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[bytes | None, Mapping[str, object]]:
        """Return the bytes among the arguments of a call, if the handler takes any, and the arguments that are JSON."""
        if not self.signature.takes_bytes:
            return None, kwargs
        if args:
            message = f"{self.signature.name} takes payload_bytes: give all arguments by name"
            raise TypeError(message)
        rest = dict(kwargs)
        data = rest.pop(BYTES, None)
        if data is None and self.signature.needs_bytes:
            message = f"{self.signature.name} needs 'payload_bytes'"
            raise TypeError(message)
        return None if data is None else check_bytes(data), rest

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Put one job into the queue and return its id. The arguments are the handler's own, without the job.

        Raises TypeError for arguments that the handler does not take, PayloadError for values that cannot travel or do not fit, and
        psycopg's errors.

        >>> receipt.enqueue(order_id=7)  # doctest: +SKIP
        42
        """
        return self._put([self._one(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """`enqueue` from asyncio. Without a client or connection of its own it runs the process-wide client in a thread."""
        return (await self._aput([self._one(args, kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[object]) -> list[int]:
        """Put many jobs into the queue, all or none, in one transaction with one notification, and return their ids in order.

        calls: for each job a dict of its arguments, a tuple of them, or, if the handler has one parameter, the argument itself (unless
            that is a dict or tuple); `payload` makes a dict that type checkers have seen. Any iterable, taken chunk by chunk while the
            transaction is open; only the ids grow with its length.
        Raises what `enqueue` does; a PayloadError has the `index` of the job.

        >>> receipt.enqueue_many(receipt.payload(order_id=n) for n in range(3))  # doctest: +SKIP
        [42, 43, 44]
        """
        return self._put(self._many(calls))

    async def aenqueue_many(self, calls: Iterable[object]) -> list[int]:
        """`enqueue_many` from asyncio. Without an asynchronous client or connection it holds all payloads at once."""
        return await self._aput(self._many(calls))

    def enqueue_stream(
        self, calls: Iterable[object], *, on_chunk: Callable[[list[int]], object] | None = None, chunk: int = bulk.CHUNK
    ) -> int:
        """Put jobs into the queue as they come, each chunk in a transaction of its own, and return how many.

        calls: as in `enqueue_many`, of any length: it takes the memory of one chunk. What stands before a job that is refused is
            enqueued; nothing from it on. On a connection of your own all is part of its transaction.
        on_chunk: is called with the ids of each chunk once it is committed. chunk: jobs of one, 1 to 10,000, default 10,000.

        >>> receipt.enqueue_stream((n,) for n in range(1_000_000))  # doctest: +SKIP
        1000000
        """
        return bulk.stream(self._many(calls, chunk), self._put, on_chunk)

    async def aenqueue_stream(
        self, calls: Iterable[object], *, on_chunk: Callable[[list[int]], object] | None = None, chunk: int = bulk.CHUNK
    ) -> int:
        """`enqueue_stream` from asyncio."""
        return await bulk.astream(self._many(calls, chunk), self._aput, on_chunk)

    def _call(self, call: object) -> object:
        signature = self.signature
        if signature.whole:
            return call
        named = isinstance(call, dict | Mapping)  # a dict is known at once, other mappings take a look at the ABC
        if named or isinstance(call, tuple):
            if type(call) in _ARGUMENTS or not self.binding.takes_alone(type(call)):
                return signature.payload((), call) if named else signature.payload(call, {})  # type: ignore[arg-type]
        elif len(signature.parameters) != 1:
            message = f"each job of {self.kind!r} takes a dict or a tuple of arguments, not a {type(call).__name__}"
            raise TypeError(message)
        return signature.payload((), {signature.parameters[0].name: call})

    def _encoded(self, payload: object) -> str:
        text = check_payload(payload)
        # As the worker will see it: a payload that does not fit would be poison there, at night.
        self.binding.compare(payload, self.binding.bind(decode_payload(text)))
        return text

    def _one(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Chunk:
        options = self._options
        if self.signature.takes_bytes:
            data, kwargs = self.split_bytes(args, kwargs)
            options = replace(options, payload_bytes=data)
        return self._ready(Chunk(self.kind, [self._encoded(self.signature.payload(args, kwargs))], options))

    def _ready(self, chunk: Chunk) -> Chunk:
        """Return the chunk as it is sent. Raises as `_weighed`, and KeyMissingError."""
        chunk = self._weighed(chunk)
        return sealed(chunk) if self._seal else chunk

    def _weighed(self, chunk: Chunk) -> Chunk:
        """Return the chunk with what each of its jobs costs. Raises what the kind's own function does, TypeError or ValueError for no cost."""
        if self._weigh is None or self._options.cost is not None:
            return chunk
        return replace(chunk, costs=[check_amounts(self._weigh(decode_payload(text)), field="cost") for text in chunk.texts])

    def _many(self, calls: Iterable[object], most: int = bulk.CHUNK) -> Iterator[Chunk]:
        if self.signature.needs_bytes:
            message = f"each job of {self.kind!r} needs payload_bytes of its own: enqueue them one by one"
            raise TypeError(message)
        if isinstance(calls, str | bytes | Mapping):
            message = f"the jobs of {self.kind!r} must be a list or another iterable of them, not one {type(calls).__name__}"
            raise TypeError(message)
        arguments, bind, compare = self._call, self.binding.bind, self.binding.compare  # looked up once and not for each job

        def encode(call: object) -> str:
            payload = arguments(call)
            text = check_payload(payload)
            found = bind(decode_payload(text))
            if type(call) is not _Document:
                compare(payload, found)
            return text

        return map(self._ready, bulk.chunks(self.kind, calls, self._options, encode=encode, most=most))

    def _put(self, chunks: Iterable[Chunk]) -> list[int]:
        match self._target:
            case None:
                return default.default_client().put(chunks)
            case Client() as client:
                return client.put(chunks)
            case psycopg.Connection() as connection:
                return send.put_on(connection, chunks, schema=default.schema_or_default())
        message = f"{type(self._target).__name__} is asynchronous: await aenqueue(...) of {self.kind!r} instead of enqueue(...)"
        raise TypeError(message)

    async def _aput(self, chunks: Iterable[Chunk]) -> list[int]:
        match default.joined() if self._target is None else self._target:
            case AsyncClient() as client:
                return await client.put(chunks)
            case psycopg.AsyncConnection() as connection:
                return await send.aput_on(connection, chunks, schema=default.schema_or_default())
            case psycopg.Connection():
                message = (
                    f"a synchronous connection would stop the event loop: call enqueue(...) of {self.kind!r}, or give an AsyncConnection"
                )
                raise TypeError(message)
        # Each job's event loop is new, and a pool belongs to one loop: the thread-safe client is the one that lasts.
        lasting = self._target if isinstance(self._target, Client) else default.default_client()
        return await asyncio.to_thread(lasting.put, list(chunks))  # a list: the caller's iterable must not be run by another thread


def _check_target(value: object, field: str, wanted: str, *kinds: type) -> None:
    """Raise TypeError for what is none: `aenqueue` would leave it aside and enqueue somewhere else."""
    if value is not None and not isinstance(value, kinds):
        message = f"{field} must be {wanted}, not a {type(value).__name__}"
        raise TypeError(message)


def _merged(base: Options, given: Options) -> Options:
    """Return `base` with what `given` says. A delay replaces a moment and the other way round."""
    values = base.parameters()
    if given.delay is not None or given.run_at is not None:
        values["delay"] = values["run_at"] = None
    values.update({name: value for name, value in given.parameters().items() if value is not None})
    return _enqueue.Options(**values)
