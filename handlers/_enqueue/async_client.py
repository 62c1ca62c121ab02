"""The asynchronous client: sends statements and chunks of jobs from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from jobherd.handlers._enqueue import bulk, statements
from jobherd.handlers._enqueue.async_client_pool import AsyncClientPool
from jobherd.handlers._enqueue.driver_connection import adriver_of, check_async
from jobherd.handlers._enqueue.dsn import find_schema
from jobherd.handlers._enqueue.pool import PoolSettings
from jobherd.handlers._enqueue.send import aput_on, arun_on, astart_on
from jobherd.handlers._enqueue.wait_for import await_for
from jobherd.handlers._enqueue.waiting import CompletionWait
from jobherd.handlers._enqueue.watching import JobWatch
from jobherd.handlers._policy.durations import Duration, at_least_zero
from jobherd.handlers._values.job_id import JobId, job_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from types import TracebackType

    from jobherd.handlers._enqueue.async_client_shards import AsyncClientShards
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.driver_connection import CallersAsyncConnection
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.send import AsyncDriver
    from jobherd.handlers._enqueue.statements import Statement

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio.

    The parameters are those of `Client`; `connection` is one of psycopg or asyncpg, or an asynchronous
    session or connection of SQLAlchemy. Each event loop gets
    its own pool. The pool's sessions end with the loop, or when the client is used next.

    Example:
        >>> async with AsyncClient("postgresql:///app") as client:  # doctest: +SKIP
        ...     await client.enqueue("mail:receipt", {"order_id": 7})
        42
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        connection: CallersAsyncConnection | None = None,
        shards: Mapping[str, str] | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = find_schema(schema)
        self._dsn = dsn
        if connection is not None:
            check_async(connection)
        self._connection = connection
        self._pool = AsyncClientPool(PoolSettings(dsn, min_size, max_size, at_least_zero(timeout, field="timeout")))
        self._shards: AsyncClientShards | None = None
        if shards is not None:
            self._shards = self._divided(shards, {"min_size": min_size, "max_size": max_size, "timeout": timeout})

    def _divided(self, shards: Mapping[str, str], pool: dict[str, Any]) -> AsyncClientShards:
        from jobherd.handlers._enqueue.async_client_shards import AsyncClientShards  # noqa: PLC0415 - as in Client

        if self._dsn is not None:
            message = "dsn and shards exclude each other: shards has the addresses"
            raise ValueError(message)
        own = None if self._connection is None else AsyncClient(schema=self.schema, connection=self._connection)
        return AsyncClientShards(shards, lambda address: AsyncClient(address, schema=self.schema, **pool), own)

    async def enqueue(self, kind: str, payload: object = None, **options: Any) -> JobId:
        """Enqueue one job and return its id. See `Client.enqueue`."""
        return job_id((await self.put([bulk.one_by_name(kind, payload, options)]))[0])

    async def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Enqueue many jobs of one kind, all or none. See `Client.enqueue_many`."""
        return await self.put(bulk.many_by_name(kind, payloads, options))

    async def enqueue_stream(
        self,
        kind: str,
        payloads: Iterable[object],
        *,
        on_chunk: Callable[[list[int]], object] | None = None,
        chunk: int = bulk.CHUNK,
        **options: Any,
    ) -> int:
        """Enqueue jobs from a stream, each chunk in its own transaction.

        See `Client.enqueue_stream`.
        """
        return await bulk.astream(
            bulk.many_by_name(kind, payloads, options, most=chunk, call="enqueue_stream"), self.put, on_chunk
        )

    async def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None. See `Client.job`."""
        return await self.run(statements.show_job(job_id), job_id)

    # as in Client
    async def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:  # noqa: ASYNC109
        """Wait until a job is finished and return its row. See `Client.wait`."""
        return (await self.wait_many([job_id], timeout))[job_id]

    async def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:  # noqa: ASYNC109
        """Wait until all jobs are finished and return their rows by id. See `Client.wait_many`."""
        if self._shards is not None:
            return await self._shards.wait_many(job_ids, timeout)
        wait = CompletionWait(job_ids, timeout, schema=self.schema, can_listen=self._connection is None)
        return await await_for(wait, self._session, dsn=self._dsn, is_own=self._connection is not None)

    async def watch(self, job_id: int, *, every: Duration = 1.0) -> AsyncIterator[dict[str, Any]]:
        """Yield the job's row at once, and again when something changes. See `Client.watch`."""
        watched = JobWatch(job_id, every)
        while True:
            row = await self.run(watched.statement, job_id)
            if watched.is_news(row) and row is not None:
                yield row
            if watched.over:
                return
            await asyncio.sleep(watched.every)

    async def cancel(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel a job. See `Client.cancel`."""
        return await self.run(statements.cancel_job(job_id, actor, reason), job_id)

    async def signal(self, topic: str, payload: object = None) -> int:
        """Send a signal to the jobs that wait for a topic. See `Client.signal`."""
        return await self.run(statements.send_signal(topic, payload))

    async def signal_job(self, job_id: int, name: str, payload: object = None) -> int | None:
        """Send a signal to one job. See `Client.signal_job`."""
        return await self.run(statements.send_signal_to(job_id, name, payload), job_id)

    async def retry(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Run a job again, at once. See `Client.retry`."""
        return await self.run(statements.retry_job(job_id, actor, reason), job_id)

    async def cancel_flow(self, flow_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel all jobs of a flow that have not ended. See `Client.cancel_flow`."""
        return await self.run(statements.cancel_flow(flow_id, actor, reason), flow_id)

    async def retry_flow(
        self, flow_id: int, from_node: str | None = None, *, actor: str | None = None, reason: str | None = None
    ) -> int | None:
        """Run the failed and canceled jobs of a flow again. See `Client.retry_flow`."""
        return await self.run(statements.retry_flow(flow_id, from_node, actor, reason), flow_id)

    async def seal_flow(self, flow_id: int) -> str | None:
        """Let a flow end when its jobs have. See `Client.seal_flow`."""
        return await self.run(statements.seal_flow(flow_id), flow_id)

    async def run(self, statement: Statement[T], job_id: int | None = None, *, within: float | None = None) -> T:
        """Run one of this package's statements. job_id, within: as in `Client.run`."""
        if self._shards is not None:
            return await (await self._shards.about(job_id, statement)).run(statement)
        async with self._session(within) as connection:
            return await arun_on(connection, statement, schema=self.schema)

    async def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Enqueue chunks made by this package, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # see Client.put
        if self._shards is not None and ahead:
            return await (await self._shards.of_chunk(ahead[0])).put(chain(ahead, left))
        async with self._session() as connection:
            return await aput_on(connection, chain(ahead, left), schema=self.schema)

    async def start(self, build: Callable[[Origin | None], Statement[int]]) -> int:
        """Enqueue a flow made by this package, and return its id."""
        if self._shards is not None:
            return await (await self._shards.of_flow(build(None))).start(build)
        async with self._session() as connection:
            return await astart_on(connection, build, schema=self.schema)

    async def close(self) -> None:
        """Close the pool of this event loop.

        The client can be used again; it then opens a new pool.
        """
        if self._shards is not None:
            await self._shards.close()
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def _session(self, within: float | None = None) -> AsyncIterator[AsyncDriver]:
        if self._connection is not None:
            yield await adriver_of(self._connection)
            return
        async with self._pool.session(within) as connection:
            yield connection
