"""Enqueues jobs with the handler's own parameters: `receipt.enqueue(order_id=7)`.

A producer is a kind and a signature with options for its jobs. It needs only the handler's
definition. It sends exactly the given arguments: defaults are those of the handler when the job
runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, Unpack

from jobherd.handlers._define.encoder import Encoder
from jobherd.handlers._define.field_names import check_field_names
from jobherd.handlers._define.flow_nodes import Call
from jobherd.handlers._enqueue import bulk, default
from jobherd.handlers._enqueue import options as _enqueue
from jobherd.handlers._enqueue.async_client import AsyncClient
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.driver_connection import adriver_of, check_connection, driver_of, is_async, is_sync
from jobherd.handlers._enqueue.rule import check_rule
from jobherd.handlers._values.job_id import JobId, job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jobherd.handlers._define.binding import Binding
    from jobherd.handlers._define.signature import Signature
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.driver_connection import CallersAsyncConnection, CallersConnection
    from jobherd.handlers._enqueue.options import JobOptions, Options

P = ParamSpec("P")

Target: TypeAlias = "Client | AsyncClient | CallersConnection | CallersAsyncConnection"


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
        self.signature = signature
        self.encoder = Encoder(kind, signature, weigh=weigh, seal=seal)
        self.set_options = options
        self._target = target

    @property
    def binding(self) -> Binding:
        """Converter from payloads to arguments.

        Built on first use, when all names in annotations exist.
        """
        return self.signature.binding

    def options(
        self,
        *,
        connection: CallersConnection | CallersAsyncConnection | None = None,
        client: Client | AsyncClient | None = None,
        **options: Unpack[JobOptions],
    ) -> Producer[P]:
        """Return a producer whose jobs have these options.

        Options that are not given keep their value.

        Args:
            connection: your own connection or session of psycopg 3, SQLAlchemy, Django or asyncpg.
                The jobs become part of its transaction.
            client: another client. Excludes `connection`.
            options: such as `delay="10m"` or `priority=-5`; see `JobOptions`.

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
        if connection is not None:
            check_connection(connection)
        _enqueue.check_target(client, "client", "a Client or an AsyncClient", Client, AsyncClient)
        given = _enqueue.check_options(**options)
        check_field_names(self.signature, given)
        if given.payload_bytes is not None and (self.signature.takes_bytes or not self.signature.takes_job):
            reason = (
                "give them to enqueue as an argument"
                if self.signature.takes_bytes
                else "its handler has neither a parameter payload_bytes nor one that takes the Job"
            )
            message = f"options of {self.kind!r} cannot have payload_bytes: {reason}"
            raise TypeError(message)
        return Producer(
            self.kind,
            self.signature,
            _merged(self.set_options, given),
            next((target for target in (connection, client) if target is not None), self._target),
            weigh=self.encoder.weigh,
            seal=self.encoder.seal,
        )

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """Return the checked payload for these arguments, for `enqueue_many` and for tests.

        Args:
            args: arguments of the handler, without the job.
            kwargs: the same by name.

        Raises:
            TypeError: the handler does not take these arguments.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.

        Example:
            >>> receipt.payload(order_id=7)  # doctest: +SKIP
            {'order_id': 7}
        """
        return self.encoder.payload(args, kwargs)

    def split_bytes(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[bytes | None, Mapping[str, object]]:
        """Split the arguments of a call into payload bytes, or None, and other arguments."""
        return self.encoder.split_bytes(args, kwargs)

    def call(self, *args: object, **kwargs: object) -> Call[Any]:
        """Return a job for a chain or a group. It is not enqueued yet.

        Args:
            args: the handler's arguments, without the job. The required parameter that you leave
                out gets the result of the job before it, or the results of the group.
            kwargs: arguments by name.

        Example:
            >>> chain(fetch.call(url="https://example.org"), parse.call()).enqueue()  # doctest: +SKIP
            42
        """
        return Call(self, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobId:
        """Enqueue one job and return its id.

        Args:
            args: arguments of the handler, without the job.
            kwargs: the same by name.

        Raises:
            TypeError: the handler does not take these arguments.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.
            psycopg.Error: the database reports an error.
            DuplicateJob: a unique job is there already, and `conflict` is "raise".

        Example:
            >>> receipt.enqueue(order_id=7)  # doctest: +SKIP
            42
        """
        return job_id(self._put([self._one(args, kwargs)])[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobId:
        """Enqueue one job from asyncio. The parameters are those of `enqueue`.

        Without its own client or connection it runs the process-wide client in a thread.
        """
        return job_id((await self._aput([self._one(args, kwargs)]))[0])

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

    def _one(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Chunk:
        return self.encoder.one(args, kwargs, self.set_options)

    def _many(self, calls: Iterable[object], most: int = bulk.CHUNK) -> Iterator[Chunk]:
        return self.encoder.many(calls, self.set_options, most)

    def _put(self, chunks: Iterable[Chunk]) -> list[int]:
        match self._target:
            case None:
                return default.default_client().put(chunks)
            case Client() as client:
                return client.put(chunks)
            case connection if is_sync(connection):
                return default.put_on_own(driver_of(connection), chunks)
        message = (
            f"{type(self._target).__name__} is asynchronous: "
            f"await aenqueue(...) of {self.kind!r} instead of enqueue(...)"
        )
        raise TypeError(message)

    async def _aput(self, chunks: Iterable[Chunk]) -> list[int]:
        match default.entered_transaction() if self._target is None else self._target:
            case AsyncClient() as client:
                return await client.put(chunks)
            case connection if is_async(connection):
                return await default.aput_on_own(await adriver_of(connection), chunks)
            case connection if is_sync(connection):
                message = (
                    f"a synchronous connection would stop the event loop: call enqueue(...) of {self.kind!r}, "
                    "or give an AsyncConnection"
                )
                raise TypeError(message)
        # Each job has a new event loop, and an asynchronous pool belongs to one loop. The
        # thread-safe client outlives the loop.
        lasting = self._target if isinstance(self._target, Client) else default.default_client()
        if lasting.is_of_a_thread:
            message = (
                f"{self.kind!r} is enqueued on Django's connection, which belongs to a thread: "
                "await sync_to_async(handler.enqueue)(...) instead of handler.aenqueue(...)"
            )
            raise TypeError(message)
        # a list: another thread must not run the caller's iterator
        return await asyncio.to_thread(lasting.put, list(chunks))


def _merged(base: Options, given: Options) -> Options:
    """Return `base` with the options of `given`.

    A delay replaces `run_at`, and `run_at` a delay.
    """
    values = base.parameters()
    if given.delay is not None or given.run_at is not None:
        values["delay"] = values["run_at"] = None
    if given.unique is False:
        values.update(dict.fromkeys(("unique_key", "unique_for", "debounce", "max_wait", "throttle", "edge")))
    values.update({name: value for name, value in given.parameters().items() if value is not None})
    merged = _enqueue.Options(**values)
    check_rule(merged)
    return merged
