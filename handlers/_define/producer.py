"""Enqueues jobs with the handler's own parameters: `receipt.enqueue(order_id=7)`.

A producer is a kind and a signature with options for its jobs. It needs only the handler's
definition. It sends exactly the given arguments: defaults are those of the handler when the job
runs.
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
from jobherd.handlers._values.payload import check_bytes, decode_payload, encode_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from jobherd.handlers._define.binding import Binding
    from jobherd.handlers._define.signature import Signature
    from jobherd.handlers._enqueue.options import Options
    from jobherd.handlers._policy.durations import Duration

P = ParamSpec("P")

_ARGUMENTS: Final = (dict, tuple)
Target: TypeAlias = "Client | AsyncClient | psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


_CHECKED: Final[dict[type, Any]] = {
    kind: type(f"Checked{kind.__name__.title()}", (kind,), {}) for kind in (dict, list, str, int)
}
"""Types of what `Producer.payload` returns: documents that were compared with their arguments, so
`enqueue_many` does not compare them again."""
_COMPARED: Final = frozenset(_CHECKED.values())


class Producer(Generic[P]):
    """Enqueues jobs of one kind. Each `Handler` is a producer; `Handler.options` makes others.

    Args:
        kind: name of the jobs.
        signature: the handler's parameters.
        options: options of the jobs.
        target: client or connection that enqueues them. Default: the process-wide client.
        weigh: function from a payload to the job's cost. Default: none.
        seal: whether payloads are encrypted. Default False.
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
        """Converter from payloads to arguments.

        Built on first use, when all names in annotations exist.
        """
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
        expires_at: datetime | None = None,
        cost: Mapping[str, float] | None = None,
        tenant: str | None = None,
        webhook: str | None = None,
        parent_id: int | None = None,
        traceparent: str | None = None,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = None,
        client: Client | AsyncClient | None = None,
    ) -> Producer[P]:
        """Return a producer whose jobs have these options.

        Options that are not given keep their value.

        Args:
            queue: queue of the jobs.
            priority: lower numbers run first, may be negative.
            delay: duration before the jobs are due, such as "10m", a number of seconds or a
                timedelta.
            run_at: timestamp at which they are due instead, a datetime with a time zone.
            max_attempts: attempts before a job fails permanently.
            timeout: longest duration of one attempt.
            expires_at: datetime with a time zone after which a job is not started any more.
            cost: resources of the host that a running job uses, amounts by name.
            tenant: tenant to which the jobs belong.
            webhook: URL that gets a request when a job reaches its final state.
            parent_id: id of the parent job. Default: the job whose handler runs this code.
            traceparent: trace of the jobs in W3C Trace Context format. Default: the trace of the
                job whose handler runs this code.
            connection: your own psycopg connection. The jobs become part of its transaction.
            client: another client. Excludes `connection`.

        Raises:
            TypeError, ValueError: an option is invalid. The message names the field, the value and
                the fix.

        Example:
            >>> receipt.options(delay="10m", priority=-5).enqueue(order_id=7)  # doctest: +SKIP
            42
        """
        if connection is not None and client is not None:
            message = "connection and client exclude each other: give one of them"
            raise ValueError(message)
        _enqueue.check_target(
            connection, "connection", "a connection of psycopg 3", psycopg.Connection, psycopg.AsyncConnection
        )
        _enqueue.check_target(client, "client", "a Client or an AsyncClient", Client, AsyncClient)
        given = _enqueue.check_options(
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            max_attempts=max_attempts,
            timeout=timeout,
            expires_at=expires_at,
            cost=cost,
            tenant=tenant,
            webhook=webhook,
            parent_id=parent_id,
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
        """Return the checked payload for these arguments, for `enqueue_many` and for tests.

        >>> receipt.payload(order_id=7)  # doctest: +SKIP
        {'order_id': 7}
        """
        found = decode_payload(self._encoded(self.signature.payload(args, self.split_bytes(args, kwargs)[1])))
        kind = _CHECKED.get(type(found))
        return found if kind is None else kind(found)

    def split_bytes(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[bytes | None, Mapping[str, object]]:
        """Split the arguments of a call into payload bytes, or None, and other arguments."""
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
        """Enqueue one job and return its id. The arguments are the handler's, without the job.

        Raises:
            TypeError: the handler does not take these arguments.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.
            psycopg.Error: the database reports an error.

        Example:
            >>> receipt.enqueue(order_id=7)  # doctest: +SKIP
            42
        """
        return self._put([self._one(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Enqueue one job from asyncio. Like `enqueue`.

        Without its own client or connection it runs the process-wide client in a thread.
        """
        return (await self._aput([self._one(args, kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[object]) -> list[int]:
        """Enqueue many jobs, all or none, in one transaction with one notification.

        Return their ids in order.

        Args:
            calls: the arguments of each job: a dict, a tuple, or, if the handler has one parameter,
                the argument itself (unless it is a dict or tuple). `payload` makes a dict that type
                checkers have checked. Any iterable works. It is read in chunks while the
                transaction is open; only the list of ids grows with its length.

        Raises:
            What `enqueue` raises. A PayloadError has the `index` of the job.

        Example:
            >>> receipt.enqueue_many(receipt.payload(order_id=n) for n in range(3))  # doctest: +SKIP
            [42, 43, 44]
        """
        return self._put(self._many(calls))

    async def aenqueue_many(self, calls: Iterable[object]) -> list[int]:
        """Like `enqueue_many`, from asyncio.

        Without an asynchronous client or connection it holds all payloads.
        """
        return await self._aput(self._many(calls))

    def enqueue_stream(
        self, calls: Iterable[object], *, on_chunk: Callable[[list[int]], object] | None = None, chunk: int = bulk.CHUNK
    ) -> int:
        """Enqueue jobs from a stream, each chunk in its own transaction, and return their number.

        Args:
            calls: as in `enqueue_many`, of any length: only one chunk is in memory at a time. If a
                job is rejected, the jobs before it are enqueued, and none from it on. On your own
                connection all jobs are part of its transaction.
            on_chunk: called with the ids of each chunk after its commit. Default: not called.
            chunk: jobs per chunk, 1 to 10,000, default 10,000.

        Example:
            >>> receipt.enqueue_stream((n,) for n in range(1_000_000))  # doctest: +SKIP
            1000000
        """
        return bulk.stream(self._many(calls, chunk), self._put, on_chunk)

    async def aenqueue_stream(
        self, calls: Iterable[object], *, on_chunk: Callable[[list[int]], object] | None = None, chunk: int = bulk.CHUNK
    ) -> int:
        """Like `enqueue_stream`, from asyncio."""
        return await bulk.astream(self._many(calls, chunk), self._aput, on_chunk)

    def _call(self, call: object) -> object:
        signature = self.signature
        if signature.whole:
            return call
        named = isinstance(call, dict | Mapping)  # dict first: the check against the Mapping ABC is slower
        if named or isinstance(call, tuple):
            if type(call) in _ARGUMENTS or not self.binding.takes_alone(type(call)):
                return signature.payload((), call) if named else signature.payload(call, {})  # type: ignore[arg-type]
        elif len(signature.parameters) != 1:
            message = f"each job of {self.kind!r} takes a dict or a tuple of arguments, not a {type(call).__name__}"
            raise TypeError(message)
        return signature.payload((), {signature.parameters[0].name: call})

    def _encoded(self, payload: object) -> str:
        binding = self.binding
        text = encode_arguments(payload, wide=binding.is_wide)
        # Bind as the worker will: a payload that does not fit would otherwise fail permanently
        # there.
        binding.compare(payload, binding.bind(decode_payload(text)))
        return text

    def _one(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Chunk:
        options = self._options
        if self.signature.takes_bytes:
            data, kwargs = self.split_bytes(args, kwargs)
            options = replace(options, payload_bytes=data)
        return self._ready(Chunk(self.kind, [self._encoded(self.signature.payload(args, kwargs))], options))

    def _ready(self, chunk: Chunk) -> Chunk:
        """Return the chunk as it is sent. Raises what `_weighed` raises, and KeyMissingError."""
        chunk = self._weighed(chunk)
        return sealed(chunk) if self._seal else chunk

    def _weighed(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the cost of each job.

        Raises what the kind's cost function raises, and TypeError or ValueError for an invalid
        cost.
        """
        if self._weigh is None or self._options.cost is not None:
            return chunk
        return replace(
            chunk, costs=[check_amounts(self._weigh(decode_payload(text)), field="cost") for text in chunk.texts]
        )

    def _many(self, calls: Iterable[object], most: int = bulk.CHUNK) -> Iterator[Chunk]:
        if self.signature.needs_bytes:
            message = f"each job of {self.kind!r} needs payload_bytes of its own: enqueue them one by one"
            raise TypeError(message)
        if isinstance(calls, str | bytes | Mapping):
            message = (
                f"the jobs of {self.kind!r} must be a list or another iterable of them, not one {type(calls).__name__}"
            )
            raise TypeError(message)
        # looked up once, not once per job
        arguments, bind, compare, wide = self._call, self.binding.bind, self.binding.compare, self.binding.is_wide

        def encode(call: object) -> str:
            payload = arguments(call)
            text = encode_arguments(payload, wide=wide)
            found = bind(decode_payload(text))
            if type(call) not in _COMPARED:
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
                message = f"a synchronous connection would stop the event loop: call enqueue(...) of {self.kind!r}, or give an AsyncConnection"
                raise TypeError(message)
        # Each job has a new event loop, and an asynchronous pool belongs to one loop. The
        # thread-safe client outlives the loop.
        lasting = self._target if isinstance(self._target, Client) else default.default_client()
        # a list: another thread must not run the caller's iterator
        return await asyncio.to_thread(lasting.put, list(chunks))


def _merged(base: Options, given: Options) -> Options:
    """Return `base` with the options of `given`.

    A delay replaces `run_at`, and `run_at` a delay.
    """
    values = base.parameters()
    if given.delay is not None or given.run_at is not None:
        values["delay"] = values["run_at"] = None
    values.update({name: value for name, value in given.parameters().items() if value is not None})
    return _enqueue.Options(**values)
